"""What a process counts while it works: plain numbers that running code raises, read by whoever
asks.

A process has one tally of its own; a part that keeps books (a server, a table) adds a source. The
file knows numbers and names of metrics; it knows no socket and asks no clock.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = ["SECONDS", "STEPS", "Histogram", "Sample", "Source", "Tally", "tally"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
STEPS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


class Histogram:
    """How often values fell below each bound, their number and their sum."""

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
    """One metric's value with its labels."""

    name: str
    value: float | Histogram
    labels: Mapping[str, object] = {}


class Source(Protocol):
    """A part of this process that keeps books."""

    def totals(self) -> Mapping[str, float]:
        """What grows: steps, samples, sent, received (bytes), waits, waited (seconds)."""

    def samples(self) -> Iterable[Sample]:
        """Metrics, by their public names."""

    def status(self) -> Mapping[str, Any]:
        """The same for people: small, and fit for JSON."""


@dataclass(slots=True)
class Tally:
    """The books of one process. Whoever knows the role says so with `enter`."""

    role: str = "process"
    index: int = -1
    ready: bool = False
    steps: int = 0
    samples_seen: int = 0
    sent: int = 0
    received: int = 0
    retries: int = 0
    last_error: str = ""
    step_seconds: Histogram = field(default_factory=Histogram)
    waits: Histogram = field(default_factory=Histogram)
    saves: Histogram = field(default_factory=Histogram)
    gauges: dict[str, float] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)

    def enter(self, role: str, index: int) -> None:
        """This process plays `role` from now on, and is ready for work."""
        self.role, self.index, self.ready = role, index, True

    def step(self, samples: int, seconds: float) -> None:
        """A step of training has ended."""
        self.steps += 1
        self.samples_seen += samples
        self.step_seconds.observe(seconds)

    def saved(self, size: int, seconds: float, now: float) -> None:
        """A checkpoint of `size` bytes has been written, `now` in seconds since 1970."""
        self.saves.observe(seconds)
        self.gauges["bireme_checkpoint_bytes"] = size
        self.gauges["bireme_checkpoint_last_success_timestamp_seconds"] = now

    def note(self, error: object) -> None:
        """Something went wrong; the newest is remembered."""
        first = (str(error).strip().splitlines() or [""])[0]
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        self.last_error = f"{kind}: {first}" if kind and first else first or kind

    # -- as a source -----------------------------------------------------------------------
    def totals(self) -> dict[str, float]:
        return {
            "steps": self.steps,
            "samples": self.samples_seen,
            "sent": self.sent,
            "received": self.received,
            "waits": self.waits.count,
            "waited": self.waits.total,
        }

    def samples(self) -> Iterable[Sample]:
        who = {"role": self.role, "trainer": self.index}
        mine = {} if self.role == "server" else {"trainer": self.index}
        for name, value in list(self.gauges.items()):
            yield Sample(name, value, mine)
        if self.saves.count:
            yield Sample("bireme_checkpoint_seconds", self.saves, {"kind": "save"})
        if self.role != "server":
            yield Sample("bireme_steps_total", self.steps, who)
            yield Sample("bireme_samples_total", self.samples_seen, who)
            yield Sample("bireme_step_seconds", self.step_seconds, {**mine, "phase": "step"})
            yield Sample("bireme_barrier_wait_seconds", self.waits, {"barrier": "round"})
            yield from _bytes("push", self.sent, "pull", self.received)
            yield Sample("bireme_rpc_retries_total", self.retries, {"method": "exchange"})

    def status(self) -> dict[str, Any]:
        figures = {name.removeprefix("bireme_"): value for name, value in self.gauges.items()}
        return {"step": self.steps, "samples": self.samples_seen, "retries": self.retries} | figures


def _bytes(out: str, sent: int, back: str, received: int) -> Iterable[Sample]:
    yield Sample("bireme_rpc_bytes_total", sent, {"method": out, "direction": "sent"})
    yield Sample("bireme_rpc_bytes_total", received, {"method": back, "direction": "received"})


tally = Tally()
