"""With which checkpoint a job's processes begin: the trainers with that of their servers, and all
servers with the same.

While processes go back to a checkpoint, parts of a newer one may still be written.
"""

from bireme.errors import PeerLost
from bireme.io.predecessor import begun_with
from bireme.ir import DistributedMode
from bireme.recovery.restarts import allowed, check_mode

from .native_server import NativeServer
from .server_pool import ServerPool

__all__ = ["agree"]


def agree(pool: ServerPool, trainer: int) -> None:
    """Note with which checkpoint the servers have begun.

    Raises:
        PeerLost: they have begun with different ones.
        ConfigError: this job cannot go back to one.
    """
    if not allowed():
        return
    found: dict[str, NativeServer] = {}
    for server in pool.native:
        mode = DistributedMode(server.welcomed.mode).name.lower().replace("_", "-")
        check_mode(mode, pool.job.trainers)
        if server.welcomed.began is not None:  # otherwise it goes on from its record
            found.setdefault(server.welcomed.began, server)
    if len(found) > 1:
        names = ", ".join(f"{server.name} with {name or 'none'}" for name, server in found.items())
        raise PeerLost(
            f"the servers have begun with different checkpoints: {names}",
            peer=next(iter(found.values())).name,
            hint="one was written while they started: start them again",
        )
    begun_with.pop(trainer, None)
    for name in found:
        begun_with[trainer] = name
