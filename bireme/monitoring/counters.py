"""Counters of a process: plain numbers incremented by running code and read on demand.

Every process has one `tally`; a component with counters of its own (a server, a table) adds a
`Source`.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from .curves import Curves
from .step_clock import PHASES

__all__ = [
    "NO_ROLE",
    "SECONDS",
    "STEPS",
    "Fault",
    "Histogram",
    "Sample",
    "Source",
    "Tally",
    "tally",
]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
NO_ROLE = "process"  # of a process that takes part in no job
FAULTS = 20  # errors that are remembered
STEPS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """Counts of values per bucket, their number and their sum."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


class Sample(NamedTuple):
    """The value of a metric, with labels."""

    name: str
    value: float | Histogram
    labels: Mapping[str, object] = {}


class Fault(NamedTuple):
    """An error that was noted: seconds since 1970, and one line."""

    time: float
    text: str


class Source(Protocol):
    """A component of this process that provides metrics."""

    def totals(self) -> Mapping[str, float]:
        """Monotonic totals: steps, samples, sent, received (bytes), waits, waited (seconds), and
        the seconds of each phase under its name.
        """

    def samples(self) -> Iterable[Sample]:
        """Metrics by their public names."""

    def status(self) -> Mapping[str, Any]:
        """A small, JSON-serialisable summary for people."""

    def shards(self) -> Iterable[Mapping[str, Any]]:
        """What this component holds of the model: name, variable, kind, shape, bytes,
        state_bytes.
        """


@dataclass(slots=True)
class Tally:
    """The counters of one process; `enter` sets its role."""

    role: str = NO_ROLE
    index: int = -1
    ready: bool = False
    steps: int = 0
    samples_seen: int = 0
    sent: int = 0
    received: int = 0
    retries: int = 0
    unsaved: int = 0
    unrecorded: int = 0
    rewinds: int = 0
    faults: deque[Fault] = field(default_factory=lambda: deque(maxlen=FAULTS))
    step_seconds: Histogram = field(default_factory=Histogram)
    waits: Histogram = field(default_factory=Histogram)
    saves: Histogram = field(default_factory=Histogram)
    phases: list[Histogram] = field(default_factory=lambda: [Histogram() for _ in PHASES])
    gauges: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    curves: Curves = field(default_factory=Curves)

    def enter(self, role: str, index: int) -> None:
        """Set the role; the process is ready for work."""
        self.role, self.index, self.ready = role, index, True

    def step(self, samples: int, seconds: float, phases: Iterable[float] = ()) -> None:
        """Count a training step, and the seconds of each of `PHASES` if they are known."""
        self.steps += 1
        self.samples_seen += samples
        self.step_seconds.observe(seconds)
        for histogram, value in zip(self.phases, phases, strict=False):
            if value:
                histogram.observe(value)

    def fetched(self, figures: Mapping[str, float]) -> None:
        """Note the numbers that the last step fetched, by name."""
        self.curves.add(self.steps, figures)
        if "loss" in figures:
            self.gauges["bireme_loss"] = figures["loss"]

    def saved(self, size: int, seconds: float, now: float) -> None:
        """Count a checkpoint of `size` bytes written at `now`, in seconds since 1970."""
        self.saves.observe(seconds)
        self.gauges["bireme_checkpoint_bytes"] = size
        self.gauges["bireme_checkpoint_last_success_timestamp_seconds"] = now

    def not_saved(self, what: str, error: BaseException | None) -> str:
        """Count a part of a checkpoint that could not be saved; returns a message for the user."""
        text = f"{what} was not saved: {type(error).__name__}: {error}"
        self.unsaved += 1
        self.note(text)
        return text

    def not_recorded(self, error: BaseException) -> str:
        """Count that a write-ahead record ended because the disk refused; returns a message for
        the user.
        """
        text = (
            f"FLAGS_durability=step: the record cannot be written ({type(error).__name__}: {error})"
            "; until it can, a restart of this process alone loses what it knows"
        )
        self.unrecorded += 1
        self.note(text)
        return text

    def note(self, error: object) -> None:
        """Remember the latest error."""
        first = (str(error).strip().splitlines() or [""])[0]
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        text = f"{kind}: {first}" if kind and first else first or kind
        if text and text != self.last_error:
            self.faults.append(Fault(time.time(), text))

    @property
    def last_error(self) -> str:
        return self.faults[-1].text if self.faults else ""

    # -- as a source -----------------------------------------------------------------------
    def totals(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "samples": self.samples_seen,
            "sent": self.sent,
            "received": self.received,
            "waits": self.waits.count,
            "waited": self.waits.total,
            **{name: h.total for name, h in zip(PHASES, self.phases, strict=True) if h.count},
        }

    def samples(self) -> Iterable[Sample]:
        who = {"role": self.role, "trainer": self.index}
        mine = {} if self.role == "server" else {"trainer": self.index}
        for name, value in list(self.gauges.items()):
            yield Sample(name, value, mine)
        for name, value in list(self.metrics.items()):
            yield Sample("bireme_metric", value, {**mine, "name": name})
        yield Sample("bireme_checkpoint_failures_total", self.unsaved, mine)
        yield Sample("bireme_record_failures_total", self.unrecorded, mine)
        yield Sample("bireme_rewinds_total", self.rewinds, mine)
        if self.saves.count:
            yield Sample("bireme_checkpoint_seconds", self.saves, {"kind": "save"})
        if self.role != "server":
            yield Sample("bireme_steps_total", self.steps, who)
            yield Sample("bireme_samples_total", self.samples_seen, who)
            yield Sample("bireme_step_seconds", self.step_seconds, {**mine, "phase": "step"})
            for name, histogram in zip(PHASES, self.phases, strict=True):
                if histogram.count:
                    yield Sample("bireme_step_seconds", histogram, {**mine, "phase": name})
            yield Sample("bireme_barrier_wait_seconds", self.waits, {"barrier": "round"})
            yield from _bytes("push", self.sent, "pull", self.received)
            yield Sample("bireme_rpc_retries_total", self.retries, {"method": "exchange"})

    def status(self) -> dict[str, Any]:
        figures = {name.removeprefix("bireme_"): value for name, value in self.gauges.items()}
        counted = {"step": self.steps, "samples": self.samples_seen, "retries": self.retries}
        return counted | figures | {"metrics": dict(self.metrics)}

    def shards(self) -> Iterable[Mapping[str, Any]]:
        return ()


def _bytes(out: str, sent: int, back: str, received: int) -> Iterable[Sample]:
    yield Sample("bireme_rpc_bytes_total", sent, {"method": out, "direction": "sent"})
    yield Sample("bireme_rpc_bytes_total", received, {"method": back, "direction": "received"})


tally = Tally()
