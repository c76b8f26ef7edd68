"""Profiles: a table per operator type, and a trace in Chrome's format, which Perfetto also opens.

Recording is in `observe`.
"""

import json
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bireme.errors import InvalidArgument
from bireme.monitoring.tracing import bars_of

from .observe import Span, start_recording, stop_recording

__all__ = [
    "Line",
    "cuda_profiler",
    "peak_memory",
    "profiler",
    "reset_profiler",
    "start_profiler",
    "stop_profiler",
    "summary",
    "table",
    "trace",
]

_DEFAULT = str(Path(tempfile.gettempdir()) / "profile")
_STATES = ("CPU", "GPU", "All")


@dataclass(frozen=True, slots=True)
class Line:
    """Totals of one operator type, in seconds and bytes."""

    type: str
    calls: int
    total: float
    least: float
    most: float
    bytes: int

    @property
    def mean(self) -> float:
        return self.total / self.calls


_ORDERS: dict[str, Callable[[Line], float]] = {
    "calls": lambda line: -line.calls,
    "total": lambda line: -line.total,
    "max": lambda line: -line.most,
    "min": lambda line: -line.least,
    "ave": lambda line: -line.mean,
}


def summary(spans: Sequence[Span], order: str | None = None) -> list[Line]:
    """One line per operator type, in order of first appearance or by a key of the table.

    Raises:
        InvalidArgument: the key is not one of calls, total, max, min, ave, default.
    """
    groups: dict[str, list[Span]] = {}
    for span in spans:
        groups.setdefault(span.type, []).append(span)
    lines = [_line(name, group) for name, group in groups.items()]
    if order in (None, "default"):
        return lines
    if order not in _ORDERS:
        raise InvalidArgument(
            f"sorted_key={order!r}", hint=f"use one of {', '.join(_ORDERS)}, default"
        )
    return sorted(lines, key=_ORDERS[order])


def _line(name: str, spans: Sequence[Span]) -> Line:
    times = [span.stop - span.start for span in spans]
    written = sum(span.bytes for span in spans)
    return Line(name, len(times), sum(times), min(times), max(times), written)


def peak_memory() -> int:
    """Peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def table(spans: Sequence[Span], order: str | None = None) -> str:
    """The profile as text, times in milliseconds and memory in MiB."""
    lines = summary(spans, order)
    whole = sum(line.total for line in lines) or 1.0
    width = max([len(line.type) for line in lines] + [8])
    head = f"{'operator':{width}}{'calls':>8}{'total':>10}{'min':>9}{'max':>9}{'ave':>9}"
    rows = [head + f"{'share':>8}{'MiB':>9}"]
    for line in lines:
        times = f"{line.total * 1e3:10.3f}{line.least * 1e3:9.4f}{line.most * 1e3:9.4f}"
        rest = f"{line.mean * 1e3:9.4f}{line.total / whole:8.1%}{line.bytes / 2**20:9.1f}"
        rows.append(f"{line.type:{width}}{line.calls:8}{times}{rest}")
    live = max((span.live for span in spans), default=0) / 2**20
    rows.append(f"temporary values at most {live:.1f} MiB; process {peak_memory() / 2**20:.0f} MiB")
    return "\n".join(rows)


def trace(spans: Sequence[Span]) -> dict[str, Any]:
    """The profile as Chrome trace events: one bar per operator, and a curve of live memory."""
    origin = min((span.start for span in spans), default=0.0)
    threads = {t: i for i, t in enumerate(dict.fromkeys(span.thread for span in spans))}
    events: list[dict[str, Any]] = []
    for span, bar in zip(spans, bars_of(spans, origin, "operator"), strict=True):
        lane = threads[span.thread]
        common = {"pid": 0, "tid": lane}
        events.append(bar | common)
        at, memory = bar["ts"] + bar["dur"], {"bytes": span.live}
        events.append({"name": f"live {lane}", "ph": "C", "ts": at, **common, "args": memory})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


# -- Fluid's doors -----------------------------------------------------------------------------
def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Start recording operators.

    Raises:
        InvalidArgument: `state` is not CPU, GPU or All.
    """
    if state not in _STATES:
        raise InvalidArgument(f"state={state!r}", hint="use 'CPU', 'GPU' or 'All'")
    start_recording()


def stop_profiler(sorted_key: str | None = None, profile_path: str | None = _DEFAULT) -> None:
    """Stop, print the table, and write the trace to `profile_path` (None: do not write it)."""
    spans = stop_recording().spans
    print(table(spans, sorted_key))
    if profile_path:
        Path(profile_path).write_text(json.dumps(trace(spans)), "utf-8")


def reset_profiler() -> None:
    """Discard the recording so far."""
    start_recording().spans.clear()


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str | None = _DEFAULT,
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Profile the block; print the table and write the trace at its end."""
    summary((), sorted_key)
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(
    output_file: str, output_mode: str | None = None, config: Sequence[str] | None = None
) -> Iterator[None]:
    """Profile the block into `output_file`; operators are timed on the host."""
    with profiler("GPU", profile_path=output_file):
        yield
