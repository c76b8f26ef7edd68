"""All-gather of small arrays between trainers, through a server."""

from collections.abc import Mapping

from bireme.arrays.namespaces import Array
from bireme.errors import ConfigError, UnsupportedError
from bireme.net.layouts import Value

from .native_server import NativeServer
from .registry import trainers
from .server_pool import ServerPool

__all__ = ["allgather", "share"]


def allgather(arrays: Mapping[str, Array], trainer: int | None = None) -> dict[str, Array]:
    """For each name the arrays of all trainers that still take part, stacked in their order.

    Every trainer must call it, between two steps. A process that is several trainers says which.

    Raises:
        ConfigError: this process is no trainer, or several.
        DeadlineExceeded: somebody did not come.
    """
    known = trainers.numbers
    if trainer is None and len(known) != 1:
        raise ConfigError(
            f"this process is {len(known)} trainers: {known}",
            hint="run the startup program first" if not known else "say which: trainer=",
        )
    number = known[0] if trainer is None else trainer
    chosen = trainers.of(number)
    with chosen.strategy.lock:
        return dict(share(chosen.servers, arrays))


def share(pool: ServerPool, values: Mapping[str, Value]) -> dict[str, Value]:
    """Arrays that every trainer brings to a server, stacked in the order of trainers; waits for
    all.

    Raises:
        ConfigError: this trainer knows no server yet.
        UnsupportedError: the server is Fluid's.
    """
    if not len(pool):
        raise ConfigError(
            "nothing can be shared before a server is known", hint="run the startup program"
        )
    meeting = min(server.endpoint.endpoint for server in pool)
    server = pool.server(meeting)
    if not isinstance(server, NativeServer):
        raise UnsupportedError(
            f"{server.name} is Fluid's, which brings trainers nothing from each other",
            hint="start the servers with bireme",
        )
    server.share(values)
    return pool.results([server])[meeting]
