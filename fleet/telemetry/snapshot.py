"""One moment of a job, as `bireme top`, the dashboard and recordings see it.

A process's `Status` is what its admin port says (`/status`); a `Snapshot` has one for every process
of the job. All times are seconds since 1970, all sizes bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from bireme.monitoring.step_clock import PHASES

from .job_file import Process

__all__ = [
    "Observed",
    "Rates",
    "Snapshot",
    "Status",
    "Straggler",
    "TableSize",
    "active",
    "error_of",
    "is_dead",
    "is_server",
    "name_of",
    "staleness_of",
    "state_of",
    "straggler_of",
]

LONG = 1.0  # seconds of waiting before a state names the missing trainers
SLOWER = 1.1  # a straggler works this many times as long as the median of the others
IDLE = ("wait", "receive")  # phases in which a trainer depends on others


class Rates(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of the last seconds; `phase_seconds` are seconds per step."""

    steps_per_second: float = 0.0
    samples_per_second: float = 0.0
    sent_bytes_per_second: float = 0.0
    received_bytes_per_second: float = 0.0
    wait_seconds: float = 0.0
    phase_seconds: Mapping[str, float] = {}


class TableSize(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a growing table on one server."""

    rows: float = 0
    bytes: float = 0


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process says of itself; what it does not say has the value here."""

    role: str = "process"
    index: int = -1
    ready: bool = False
    pid: int = 0
    host: str = ""
    time: float = 0.0
    started: float = 0.0
    memory_bytes: int = 0
    last_error: str = ""
    faults: Sequence[tuple[float, str]] = ()
    rates: Rates = Rates()
    step: int = 0
    samples: int = 0
    retries: int = 0
    loss: float | None = None
    accuracy: float | None = None
    metrics: Mapping[str, float] = {}
    # of servers
    mode: str = ""
    missing: Sequence[int] = ()
    waiting_seconds: float = 0.0
    staleness: Mapping[int, float] = {}
    tables: Mapping[str, TableSize] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Loss, accuracy and all other metrics, by name."""
        named = {"loss": self.loss, "accuracy": self.accuracy}
        return {k: v for k, v in named.items() if v is not None} | dict(self.metrics)


class Observed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process and its status; None if it did not answer."""

    process: Process
    status: Status | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """All processes at one time."""

    time: float
    observed: tuple[Observed, ...]


class Straggler(NamedTuple):
    """The trainer that the others wait for, and the phase that takes it longer than them."""

    trainer: int
    phase: str
    seconds: float  # of work per step
    others: float  # the median of the others


# -- words -------------------------------------------------------------------------------------
def name_of(observed: Observed) -> str:
    """Role and number; the admin port for a process of which no more is known."""
    process, status = observed.process, observed.status
    if process.index >= 0:
        return f"{process.role} {process.index}"
    if status is not None and status.index >= 0:
        return f"{status.role} {status.index}"
    return process.role


def active(observed: Sequence[Observed]) -> list[Observed]:
    """Those that have not exited; all of a job that has ended."""
    return [one for one in observed if one.process.exit_code is None] or list(observed)


def is_server(observed: Observed) -> bool:
    process, status = observed.process, observed.status
    return process.role == "server" or (status is not None and status.role == "server")


def state_of(observed: Observed) -> str:
    """running, starting, waits for trainer N, no answer, done, or exit CODE."""
    process, status = observed.process, observed.status
    if process.exit_code is not None:
        return "done" if process.exit_code == 0 else f"exit {process.exit_code}"
    if status is None:
        return "no answer" if process.admin else "starting"
    if not status.ready:
        return "starting"
    if not status.missing or status.waiting_seconds < LONG:
        return "running"
    names = ", ".join(map(str, status.missing[:3]))
    return f"waits for trainer {names}: {status.waiting_seconds:.0f} s"


def error_of(observed: Observed) -> str:
    """The last error of a process: what its log says of its end, else what it said itself."""
    status = observed.status
    return observed.process.error or (status.last_error if status is not None else "")


def is_dead(state: str) -> bool:
    return state.startswith(("no answer", "exit "))


# -- figures -----------------------------------------------------------------------------------
def staleness_of(observed: Iterable[Observed]) -> dict[int, float]:
    """Trainer -> staleness of its gradients in steps, averaged over the servers."""
    seen: dict[int, list[float]] = {}
    for _, status in ((o.process, o.status) for o in observed):
        for trainer, steps in (status.staleness if status else {}).items():
            seen.setdefault(trainer, []).append(steps)
    return {trainer: sum(steps) / len(steps) for trainer, steps in seen.items()}


def straggler_of(observed: Iterable[Observed]) -> Straggler | None:
    """The trainer whose own work (without waiting and receiving) takes the longest, if it takes
    clearly longer than the others'.
    """
    phases = {
        o.status.index: o.status.rates.phase_seconds
        for o in observed
        if o.status is not None and not is_server(o) and o.status.rates.phase_seconds
    }
    work = {i: sum(s for p, s in each.items() if p not in IDLE) for i, each in phases.items()}
    if len(work) < 2:
        return None
    slowest = max(work, key=lambda i: work[i])
    others = median(seconds for i, seconds in work.items() if i != slowest)
    if work[slowest] < SLOWER * others:
        return None

    def excess(phase: str) -> float:
        usual = median(each.get(phase, 0.0) for i, each in phases.items() if i != slowest)
        return phases[slowest].get(phase, 0.0) - usual

    phase = max((p for p in PHASES if p not in IDLE), key=excess)
    return Straggler(slowest, phase, work[slowest], others)
