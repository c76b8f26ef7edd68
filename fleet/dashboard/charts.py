"""Tabs of charts over time: training (loss, metrics, speed, staleness, phases), and network."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import ClassVar

from bokeh.models import LayoutDOM

from bireme.monitoring.step_clock import PHASES

from ..telemetry.snapshot import Snapshot, Status, is_server, name_of, staleness_of
from .feed import Feed
from .views import Chart, Lines, Values, View

__all__ = ["Network", "Training", "each"]


def each(read: Callable[[Status], float | None], *, servers: bool | None = None) -> Callable[
    [Snapshot], Values
]:  # fmt: skip
    """A line per process; of servers only, or without them."""

    def values(snapshot: Snapshot) -> Values:
        found = {}
        for one in snapshot.observed:
            status = one.status
            if status is None or one.process.exit_code is not None:
                continue
            if servers is not None and servers != is_server(one):
                continue
            value = read(status)
            if value is not None:
                found[name_of(one)] = value
        return found

    return values


class _Charts(View):
    """A tab of charts only."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._lines = Lines(self.charts())

    @abstractmethod
    def charts(self) -> Sequence[Chart]:
        """The charts of the tab."""

    @property
    def root(self) -> LayoutDOM:
        return self._lines.root

    def clear(self) -> None:
        self._lines.clear()

    def take(self, new: Sequence[Snapshot]) -> None:
        self._lines.take(new)

    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        self._lines.show(None if latest else snapshot.time)


class Training(_Charts):
    """What the job learns, and how fast."""

    title: ClassVar[str] = "Training"

    def charts(self) -> Sequence[Chart]:
        return (
            Chart("loss", "", each(lambda s: s.loss, servers=False)),
            Chart("accuracy", "", each(lambda s: s.accuracy, servers=False)),
            Chart("speed", "samples/s", each(lambda s: s.rates.samples_per_second, servers=False)),
            Chart("phases of a step, mean of the trainers", "ms", _phases),
            Chart("staleness of gradients", "steps", _stale),
        )

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._metrics: set[str] = set()

    def take(self, new: Sequence[Snapshot]) -> None:
        """A chart for each metric that the script reports, from the first report on."""
        for snapshot in new:
            for name in sorted(_reported(snapshot) - self._metrics):
                self._metrics.add(name)
                self._lines.add(Chart(name, "", each(_metric(name), servers=False)))
            super().take([snapshot])


class Network(_Charts):
    """What moves between processes."""

    title: ClassVar[str] = "Network"

    def charts(self) -> Sequence[Chart]:
        return (
            Chart("sent", "MB/s", each(lambda s: s.rates.sent_bytes_per_second / 1e6)),
            Chart("received", "MB/s", each(lambda s: s.rates.received_bytes_per_second / 1e6)),
            Chart(
                "wait for the round",
                "ms",
                each(lambda s: s.rates.wait_seconds * 1e3, servers=False),
            ),
            Chart("exchanges repeated after a lost connection", "", _retries),
        )


def _reported(snapshot: Snapshot) -> set[str]:
    """The names of metrics other than loss and accuracy."""
    return {name for one in snapshot.observed if one.status for name in one.status.metrics}


def _metric(name: str) -> Callable[[Status], float | None]:
    return lambda status: status.metrics.get(name)


def _phases(snapshot: Snapshot) -> Values:
    trainers = [
        o.status.rates.phase_seconds
        for o in snapshot.observed
        if o.status is not None and not is_server(o) and o.process.exit_code is None
    ]
    return {
        phase: 1e3 * fmean(each.get(phase, 0.0) for each in trainers)
        for phase in PHASES
        if any(phase in each for each in trainers)
    }


def _stale(snapshot: Snapshot) -> Values:
    return {f"trainer {t}": steps for t, steps in sorted(staleness_of(snapshot.observed).items())}


def _retries(snapshot: Snapshot) -> Values:
    found = each(lambda s: float(s.retries), servers=False)(snapshot)
    return {name: value for name, value in found.items() if value}
