"""Recordings of what this process does, for profiles and traces: operators, phases of steps, and
tasks of a server. Several recordings may run at once; without one, nothing is recorded.

A trace uses Chrome's format, which Perfetto opens: bars of the X kind, in microseconds since the
`origin` that goes with them.
"""

import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "Bar",
    "Recording",
    "Span",
    "bar",
    "bars_of",
    "begin",
    "end",
    "part",
    "recordings",
    "timed",
]

LIMIT = 500_000  # operators, and as many other bars, of a recording


@dataclass(frozen=True, slots=True)
class Span:
    """One run of one operator, in seconds of the performance clock.

    `bytes` is the size of its outputs, `live` the size of all temporary values after it.
    """

    type: str
    start: float
    stop: float
    bytes: int
    live: int
    thread: int


class Bar(NamedTuple):
    """Anything else that takes time: a phase of a step, an update of a server."""

    name: str
    start: float
    stop: float
    thread: int


@dataclass(slots=True)
class Recording:
    """What was recorded between `begin` and `end`; the first `limit` of each kind."""

    limit: int = LIMIT
    spans: list[Span] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def add(self, span: Span) -> None:
        if len(self.spans) < self.limit:
            self.spans.append(span)


recordings: tuple[Recording, ...] = ()  # those that run
_lock = threading.Lock()


def begin(recording: Recording) -> None:
    """Record into `recording` from now on."""
    global recordings
    with _lock:
        recordings = (*recordings, recording)


def end(recording: Recording) -> None:
    """Stop recording into `recording`."""
    global recordings
    with _lock:
        recordings = tuple(one for one in recordings if one is not recording)


def bar(name: str, start: float, stop: float) -> None:
    """Something of this thread took from `start` to `stop` of the performance clock."""
    for recording in recordings:
        if len(recording.bars) < recording.limit:
            recording.bars.append(Bar(name, start, stop, threading.get_ident()))


def timed(count: Callable[[float], None], task: Callable[..., Any], *given: Any) -> Any:
    """Do a task; `count` is told its seconds, and recordings its name."""
    began = time.perf_counter()
    try:
        return task(*given)
    finally:
        ended = time.perf_counter()
        count(ended - began)
        if recordings:
            bar(task.__name__, began, ended)


# -- Chrome's format -----------------------------------------------------------------------------
def part(recording: Recording, role: str, index: int) -> dict[str, Any]:
    """This process's part of a trace: who it is, its events, the names of its threads, and the
    time of its `origin` in seconds since 1970.
    """
    spans, bars = list(recording.spans), list(recording.bars)
    every: list[Span | Bar] = [*spans, *bars]
    origin = min((each.start for each in every), default=time.perf_counter())
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        "role": role,
        "index": index,
        "pid": os.getpid(),
        "host": platform.node(),
        "origin": time.time() - (time.perf_counter() - origin),
        "threads": {str(n): threads.get(n, "") for n in {e.thread for e in every}},
        "events": bars_of(bars, origin, "phase") + bars_of(spans, origin, "operator"),
    }


def bars_of(found: Sequence[Span | Bar], origin: float, kind: str) -> list[dict[str, Any]]:
    """An event for each operator or bar; `tid` is its thread."""
    events = []
    for each in found:
        event: dict[str, Any] = {
            "name": each.type if isinstance(each, Span) else each.name,
            "cat": kind,
            "ph": "X",
            "ts": round((each.start - origin) * 1e6, 3),
            "dur": round((each.stop - each.start) * 1e6, 3),
            "tid": each.thread,
        }
        if isinstance(each, Span):
            event["args"] = {"bytes": each.bytes}
        events.append(event)
    return events
