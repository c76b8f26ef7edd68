"""The first tab: who is there and since when, how fast it goes, where the time of a step is spent,
and who makes the others wait.
"""

from collections.abc import Sequence
from html import escape
from typing import ClassVar

from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet, LayoutDOM, NumeralTickFormatter

from bireme.monitoring.step_clock import PHASES

from ..telemetry.snapshot import (
    Observed,
    Snapshot,
    Status,
    active,
    error_of,
    is_dead,
    is_server,
    name_of,
    staleness_of,
    state_of,
    straggler_of,
)
from .bars import Bars
from .feed import Feed
from .style import (
    PHASE_COLOURS,
    TABLE_SHEET,
    clock,
    duration,
    html_table,
    seconds,
    size,
)
from .views import View

__all__ = ["Overview", "phase_rows", "sentences", "table_rows"]

HEAD = (
    "process", "state", "since", "step", "samples/s", "step time", "wait", "stale",
    "memory", "in/s", "out/s", "host", "last error",
)  # fmt: skip
RIGHT = HEAD[3:11]
ROW = 26  # pixels of a bar
COLOURS = {phase: PHASE_COLOURS[phase] for phase in PHASES}


class Overview(View):
    """The table of processes, and a bar of phases for each."""

    title: ClassVar[str] = "Overview"

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        sheets = [InlineStyleSheet(css=TABLE_SHEET)]
        self._words = Div(sizing_mode="stretch_width", stylesheets=sheets)
        self._table = Div(
            sizing_mode="stretch_width", stylesheets=sheets, css_classes=["processes"]
        )
        self._bars = Bars(
            "time of a step by phase, mean of the last seconds", "ms", COLOURS, ROW, "above"
        )
        legend, axis = self._bars.root.legend, self._bars.root.xaxis
        legend.orientation, legend.border_line_color = "horizontal", None
        axis.formatter = NumeralTickFormatter(format="0.[000]")
        self._root = column(self._words, self._table, self._bars.root, sizing_mode="stretch_width")

    @property
    def root(self) -> LayoutDOM:
        return self._root

    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        now = snapshot.time
        text = "".join(f"<div class='note {kind}'>{escape(s)}</div>"
                       for kind, s in sentences(snapshot.observed))  # fmt: skip
        table = html_table(HEAD, table_rows(snapshot.observed, now), RIGHT)
        for div, html in ((self._words, text), (self._table, table)):
            if div.text != html:
                div.text = html
        rows = phase_rows(snapshot.observed)
        self._bars.show({n: {kind: 1e3 * v for kind, v in row.items()} for n, row in rows})


# -- from snapshots to text ----------------------------------------------------------------------
def sentences(observed: Sequence[Observed]) -> list[tuple[str, str]]:
    """The job in a few sentences, each with its kind: "", "warn" or "muted"."""
    running = active(observed)
    trainers = [o.status for o in running if o.status is not None and not is_server(o)]
    speed = sum(s.rates.samples_per_second for s in trainers)
    steps = max((s.step for s in trainers), default=0)
    said = [
        ("", f"{len(observed)} processes; step {steps:,}; {speed:,.0f} samples/s in all"),
    ]
    said += [
        ("warn", f"{name_of(one)} has ended the job: {error_of(one) or state_of(one)}")
        for one in observed
        if one.process.blamed
    ]
    slow = straggler_of(running)
    if slow is not None:
        said.append((
            "warn",
            f"trainer {slow.trainer} makes the others wait: it works {seconds(slow.seconds)} per "
            f"step, the others {seconds(slow.others)}; most of the difference is {slow.phase}",
        ))  # fmt: skip
    elif len(trainers) > 1 and any(s.rates.phase_seconds for s in trainers):
        said.append(("muted", "no trainer is clearly slower than the others"))
    return said


def table_rows(observed: Sequence[Observed], now: float) -> list[tuple[str, tuple[str, ...]]]:
    """A row of `HEAD` per process, and its class."""
    stale = staleness_of(observed)
    return [_row(one, stale, now) for one in observed]


def _row(one: Observed, stale: dict[int, float], now: float) -> tuple[str, tuple[str, ...]]:
    state, status = state_of(one), one.status or Status()
    kind = "dead" if is_dead(state) else "waits" if state.startswith("waits") else ""
    rates, server = status.rates, is_server(one)
    own = list(stale.values()) if server else [s for t, s in stale.items() if t == status.index]
    since = f"{clock(status.started)} ({duration(max(0.0, now - status.started))})"
    return kind, (
        name_of(one),
        state,
        since if status.started else "-",
        f"{status.step:,}" if one.status else "-",
        f"{rates.samples_per_second:,.0f}" if one.status and not server else "-",
        seconds(1 / rates.steps_per_second if rates.steps_per_second > 0 else 0.0),
        seconds(rates.wait_seconds),
        f"{sum(own) / len(own):.1f}" if own else "-",
        size(status.memory_bytes) if status.memory_bytes else "-",
        size(rates.received_bytes_per_second),
        size(rates.sent_bytes_per_second),
        status.host or "-",
        error_of(one),
    )


def phase_rows(observed: Sequence[Observed]) -> list[tuple[str, dict[str, float]]]:
    """For each process the seconds of a step per phase. A server waits between its updates."""
    rows = []
    for one in observed:
        if one.status is None or not one.status.rates.phase_seconds:
            continue
        rates = one.status.rates
        phases = dict(rates.phase_seconds)
        if is_server(one) and rates.steps_per_second > 0:
            phases["wait"] = max(0.0, 1 / rates.steps_per_second - sum(phases.values()))
        rows.append((name_of(one), phases))
    return rows
