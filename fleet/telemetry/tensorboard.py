"""TensorBoard event files of a job: a run per process, scalars over its steps; by tensorboardX."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bireme.extras import library

from .snapshot import Observed, Snapshot, Status, is_server, name_of, staleness_of

__all__ = ["EventFiles", "scalars"]


class EventFiles:
    """Writes snapshots to event files below a folder, until `close`."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: tensorboardX is not installed.
        """
        self._library = library("tensorboardX", "tensorboard", "writing TensorBoard event files")
        self._folder = folder
        self._writers: dict[str, Any] = {}
        self._steps: dict[str, int] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Add a point for every process that has gone on since the last snapshot."""
        stale = staleness_of(snapshot.observed)
        for one in snapshot.observed:
            name, status = _run_of(one), one.status
            if status is None or not status.ready or self._steps.get(name) == status.step:
                continue
            self._steps[name] = status.step
            writer = self._writer(name)
            for tag, value in scalars(one, status, stale):
                writer.add_scalar(tag, value, status.step, walltime=status.time or snapshot.time)

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._library.SummaryWriter(str(self._folder / name))
        return self._writers[name]

    def write(self, snapshots: Iterable[Snapshot]) -> int:
        """Write these; returns the number of runs."""
        for snapshot in snapshots:
            self.take(snapshot)
        return len(self._writers)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _run_of(one: Observed) -> str:
    """The name of a process's folder; a process may say anything of itself."""
    return name_of(one).replace(" ", "-").replace("/", "-").lstrip(".") or "process"


def scalars(one: Observed, status: Status, stale: dict[int, float]) -> Iterator[tuple[str, float]]:
    """Names and values of the points of a process."""
    rates = status.rates
    yield from ((f"train/{name}", value) for name, value in status.figures.items())
    if not is_server(one):
        yield "speed/samples_per_second", rates.samples_per_second
        yield "speed/wait_seconds", rates.wait_seconds
        if status.index in stale:
            yield "speed/staleness_steps", stale[status.index]
    yield "speed/steps_per_second", rates.steps_per_second
    yield from ((f"phase_seconds/{name}", value) for name, value in rates.phase_seconds.items())
    yield "bytes/sent_per_second", rates.sent_bytes_per_second
    yield "bytes/received_per_second", rates.received_bytes_per_second
    yield "memory/process_bytes", float(status.memory_bytes)
    for table, size in status.tables.items():
        yield f"memory/{table}_rows", size.rows
        yield f"memory/{table}_bytes", size.bytes
