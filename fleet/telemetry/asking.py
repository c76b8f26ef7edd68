"""Asks the processes of a job at their admin ports, in parallel."""

import http.client
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import msgspec

from bireme.job_token import job_token

from .job_file import Process
from .snapshot import Observed, Snapshot, Status

__all__ = ["Asker", "Shard", "named"]

PATIENCE = 2.0  # seconds for one answer
LARGEST = 64 << 20  # bytes of one answer
Answer = TypeVar("Answer")


class Shard(msgspec.Struct, frozen=True):
    """What a server holds of one variable; `state_bytes` is what the optimizer keeps for it."""

    name: str
    variable: str
    kind: str  # dense or table
    shape: tuple[int, ...]
    bytes: int
    state_bytes: int = 0


def named(endpoints: Sequence[str]) -> tuple[Process, ...]:
    """Processes that are known by their admin ports only."""
    return tuple(Process(endpoint, -1, admin=endpoint) for endpoint in endpoints)


class Asker:
    """Keeps a connection to every process; one thread uses it at a time."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._pool = ThreadPoolExecutor(32, "ask")
        self._last: dict[tuple[str, int, int], Status] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
        for connection in self._connections.values():
            connection.close()

    def snapshot(self, processes: Sequence[Process]) -> Snapshot:
        """The status of every process; of one that has exited what it said last."""
        now = time.time()
        found = self.all(processes, lambda each: self.read(each, "/status", Status))
        pairs = zip(processes, found, strict=True)
        return Snapshot(now, tuple(Observed(p, self._remembered(p, s)) for p, s in pairs))

    def _remembered(self, process: Process, status: Status | None) -> Status | None:
        life = process.role, process.index, process.pid
        if status is not None:
            self._last[life] = status
        elif process.exit_code is not None and life in self._last:
            status = _at_the_end(self._last[life], process.figures)
        return status

    def shards(self, process: Process) -> tuple[Shard, ...] | None:
        """What a server holds; None if it does not answer."""
        found: tuple[Shard, ...] | None = self.read(process, "/shards", tuple[Shard, ...])
        return found

    def all(self, processes: Sequence[Process], ask: Callable[[Process], Answer]) -> list[Answer]:
        """What `ask` gives for each process, in parallel."""
        return list(self._pool.map(ask, processes))

    def read(self, process: Process, page: str, kind: Any) -> Any:
        """A page of JSON as a value of type `kind`; None if the process does not give one."""
        if not process.admin or process.exit_code is not None:
            return None
        known = process.admin in self._connections
        data = self._get(process.admin, page)
        if data is None and known:  # the connection may have been closed for being idle
            data = self._get(process.admin, page)
        try:
            return None if data is None else msgspec.json.decode(data, type=kind, strict=False)
        except msgspec.DecodeError:
            return None

    def _get(self, endpoint: str, page: str) -> bytes | None:
        connection = self._connections.pop(endpoint, None)
        if connection is None:
            connection = http.client.HTTPConnection(endpoint, timeout=self._patience)
        token = job_token()
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request("GET", page, headers=shown)
            answer = connection.getresponse()
            data = answer.read(LARGEST + 1)
            if len(data) > LARGEST:
                raise http.client.LineTooLong(page)
        except (OSError, http.client.HTTPException):
            connection.close()
            return None
        self._connections[endpoint] = connection
        return data if answer.status == 200 else None


def _at_the_end(status: Status, figures: Mapping[str, float]) -> Status:
    """What a process said last, with its final figures as the launcher knows them."""
    rate = figures.get("samples_per_second", status.rates.samples_per_second)
    return msgspec.structs.replace(
        status,
        step=int(figures.get("step", status.step)),
        samples=int(figures.get("samples", status.samples)),
        loss=figures.get("loss", status.loss),
        rates=msgspec.structs.replace(status.rates, samples_per_second=rate),
    )
