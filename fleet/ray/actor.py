"""What an actor does: it keeps ports of its host, and runs one process of the job there.

Everything that the process leaves is yielded to the driver, where the launcher watches it.
"""

import os
import select
import signal
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from bireme.extras import library

from ..launcher.job import inherited
from ..launcher.ports import Reservation
from ..launcher.runner import Files, LocalProcess

__all__ = ["News", "Order", "Seated"]

FUNCTION = str(Path(__file__).with_name("function.py"))
PART = 1 << 20  # bytes of a log that are sent at once
PAUSE = 0.2  # seconds between two looks at the log
News = tuple[str, Any]  # pid, log, reports, error, curves, result or exit, and its value


class Order(NamedTuple):
    """The process to run: a command of the launcher's, or a pickled function."""

    command: tuple[str, ...]
    function: bytes
    variables: Mapping[str, str]
    role: Mapping[str, str]  # variables as well
    endpoints: tuple[str, ...]  # of this process, whose ports are reserved
    folder: str  # the driver's
    processes: int
    admin_host: str  # where alone admin ports can be reached


class Seated:
    """The actor of one process. It survives the process, and keeps its ports."""

    def __init__(self) -> None:
        self._ray = library("ray", "ray", "a job on a Ray cluster")
        self._host = str(self._ray.util.get_node_ip_address())
        self._reservation: Reservation | None = None
        self._process: LocalProcess | None = None

    def reserve(self, count: int, ports: tuple[int, ...] = ()) -> tuple[str, ...]:
        """Endpoints of this host, in the place of earlier ones."""
        if self._reservation is not None:
            self._reservation.close()
        self._reservation = Reservation(count, self._host, listed=ports)
        return tuple(self._reservation.endpoints)

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(signal.Signals(number))

    def run(self, order: Order) -> Iterator[News]:
        """Run the process to its end. It dies with the actor."""
        if self._reservation is None and (problem := self._reserve_again(order.endpoints)):
            yield "log", f"bireme: {problem}\n".encode()
            yield "exit", 1
            return
        if os.path.isdir(order.folder) and not self._has_working_dir():
            os.chdir(order.folder)
        with tempfile.TemporaryDirectory(prefix="bireme-ray-") as folder:
            files = Files(Path(folder, "log"), Path(folder, "error"), Path(folder, "curves.csv"))
            command = list(order.command)
            if order.function:
                Path(folder, "call").write_bytes(order.function)
                command = [FUNCTION, folder]
            self._process = LocalProcess(command, self._environ(order), files)
            yield "pid", self._process.pid
            yield from _followed(self._process, files.log)
            yield from _left(files.error, "error")
            yield from _left(files.curves, "curves")
            yield from _left(Path(folder, "result"), "result")
            yield "exit", self._process.wait()

    def _reserve_again(self, endpoints: tuple[str, ...]) -> str:
        """Reserve the ports of a process that continues here; why it cannot, or ""."""
        hosts, ports = zip(*(endpoint.rsplit(":", 1) for endpoint in endpoints), strict=True)
        if set(hosts) != {self._host}:
            return f"restarted on {self._host}, while the job knows it at {endpoints[0]}"
        try:
            self.reserve(len(ports), tuple(map(int, ports)))
        except ValueError as error:
            return str(error)
        return ""

    def _has_working_dir(self) -> bool:
        return bool(self._ray.get_runtime_context().runtime_env.get("working_dir"))

    def _environ(self, order: Order) -> dict[str, str]:
        admin = self._host == order.admin_host
        base = inherited({**os.environ, **order.variables}, order.processes, admin)
        return {**base, **order.role}


def _followed(process: LocalProcess, log: Path) -> Iterator[News]:
    """What the process logs and reports, until it has exited."""
    open_ends = [process.life, process.reports]
    with open(log, "rb") as text:
        while process.life in open_ends:
            for end in select.select(open_ends, [], [], PAUSE)[0]:
                data = os.read(end, 1 << 16) if end == process.reports else b""
                if data:
                    yield "reports", data
                else:
                    open_ends.remove(end)
            yield from _parts(text)
        yield from _parts(text)


def _parts(text: IO[bytes]) -> Iterator[News]:
    """What is new in a log, a bounded part at a time."""
    while part := text.read(PART):
        yield "log", part


def _left(path: Path | None, kind: str) -> Iterator[News]:
    if path is not None and path.exists():
        yield kind, path.read_bytes()
