"""Named points inside a step at which a process kills or freezes itself.

A process is asked for it by the environment variable BIREME_FAULT_POINT: "trainer 1 kill pushed 7"
is a SIGKILL of trainer 1 when it passes the point `pushed` for the seventh time.
"""

import os
import signal
from collections.abc import Callable
from typing import Any

from bireme.fleet.role_maker import Role

__all__ = ["POINTS", "SAVING", "follow", "request"]

VARIABLE = "BIREME_FAULT_POINT"
SAVING = "saving"  # a point that needs checkpoints
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
POINTS = {
    "server": ("before-apply", "applying", SAVING, "answered"),
    "trainer": ("pushed", "awaiting", SAVING, "answered"),
    "rank": ("reducing", "reduced"),
}

Pass = Callable[[str], None]


def request(role: str, index: int, action: str, point: str, count: int) -> dict[str, str]:
    """The variable that asks for it."""
    return {VARIABLE: f"{role} {index} {action} {point} {count}"}


def follow() -> None:
    """Let this process do to itself what the environment asks of its role."""
    if VARIABLE not in os.environ:
        return
    words, role = os.environ[VARIABLE].split(), Role.from_env()
    kind = "rank" if role.is_collective else "server" if role.is_server else "trainer"
    index = role.servers.index(role.endpoint) if role.is_server else role.trainer_id
    if words[:2] != [kind, str(index)]:
        return
    action, point, left = words[2], words[3], int(words[4])

    def passes(passed: str) -> None:
        nonlocal left
        left -= passed == point
        if passed == point and left == 0:
            os.kill(os.getpid(), SIGNALS[action])

    _saving(passes)
    {"server": _server, "trainer": _trainer, "rank": _rank}[kind](passes)


def _after(owner: Any, method: str, point: str, passes: Pass) -> None:
    """Pass `point` whenever this method has returned."""
    original = getattr(owner, method)

    def replacement(*given: Any, **named: Any) -> Any:
        found = original(*given, **named)
        passes(point)
        return found

    setattr(owner, method, replacement)


def _before(owner: Any, method: str, point: str, passes: Pass) -> None:
    original = getattr(owner, method)

    def replacement(*given: Any, **named: Any) -> Any:
        passes(point)
        return original(*given, **named)

    setattr(owner, method, replacement)


def _saving(passes: Pass) -> None:
    """Half of a file has been written."""
    from bireme.io.disk import Disk

    original = Disk.write

    def write(self: Disk, path: Any, pieces: Any) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        original(self, path, [data[: len(data) // 2]])
        passes(SAVING)
        original(self, path, [data])

    Disk.write = write  # type: ignore[method-assign]


def _server(passes: Pass) -> None:
    from bireme.net.socket_server import _Channel
    from bireme.pserver.store.fusion import _Group
    from bireme.pserver.store.updates import Updates

    _before(Updates, "_apply", "before-apply", passes)
    _after(_Group, "apply", "applying", passes)  # one of several groups of blocks
    prepared = Updates._block

    def block(self: Updates, index: int) -> Callable[[], None]:
        run = prepared(self, index)

        def and_pass() -> None:
            run()
            passes("applying")  # one of several blocks

        return and_pass

    Updates._block = block  # type: ignore[method-assign]
    answer = _Channel._answer

    async def answered(self: _Channel, waiting: Any) -> None:
        await answer(self, waiting)
        passes("answered")

    _Channel._answer = answered  # type: ignore[method-assign]


def _trainer(passes: Pass) -> None:
    from bireme.trainer.native_server import NativeServer

    _after(NativeServer, "push", "pushed", passes)
    _before(NativeServer, "result", "awaiting", passes)
    _after(NativeServer, "result", "answered", passes)


def _rank(passes: Pass) -> None:
    from bireme.collective.process_group import WireGroup

    _after(WireGroup, "announce", "reducing", passes)  # the others may wait in memory
    _after(WireGroup, "_carry", "reduced", passes)
