"""Memory: of processes over time, and of the model per server: parameters, states, tables."""

from collections.abc import Sequence
from typing import ClassVar

from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet, LayoutDOM

from ..telemetry.asking import Shard
from ..telemetry.recording import Shards
from ..telemetry.snapshot import Observed, Snapshot, Status, name_of
from .bars import Bars
from .charts import each
from .feed import Feed
from .style import TABLE_SHEET, html_table, size
from .views import Chart, Lines, Values, View

__all__ = ["Memory", "held", "shard_rows"]

COLOURS = {"parameters": "#3182bd", "optimizer states": "#9ecae1", "tables": "#31a354"}
HEAD = ("table or variable", "server", "part", "rows", "values", "optimizer states", "")
RIGHT = HEAD[3:6]
MOST_ROWS = 60


class Memory(View):
    """Charts, bars per server, and the largest parts in a table."""

    title: ClassVar[str] = "Memory"

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._lines = Lines((
            Chart("memory of processes", "MB", each(lambda s: s.memory_bytes / 1e6)),
            Chart("rows of tables, all servers", "", _rows),
        ))  # fmt: skip
        self._bars = Bars("what servers hold", "MB", COLOURS, 30, "right")
        self._table = Div(
            sizing_mode="stretch_width", stylesheets=[InlineStyleSheet(css=TABLE_SHEET)]
        )
        self._root = column(
            self._lines.root, self._bars.root, self._table, sizing_mode="stretch_width"
        )

    @property
    def root(self) -> LayoutDOM:
        return self._root

    def clear(self) -> None:
        self._lines.clear()

    def take(self, new: Sequence[Snapshot]) -> None:
        self._lines.take(new)

    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        self._lines.show(None if latest else snapshot.time)
        shards = self.feed.shards
        rows = held(shards, snapshot.observed)
        self._bars.show({n: {kind: v / 1e6 for kind, v in r.items()} for n, r in rows.items()})
        text = html_table(HEAD, shard_rows(shards, snapshot.observed), RIGHT)
        if self._table.text != text:
            self._table.text = text


def _rows(snapshot: Snapshot) -> Values:
    found: dict[str, float] = {}
    for one in snapshot.observed:
        for table, grown in (one.status.tables if one.status else {}).items():
            found[table] = found.get(table, 0.0) + grown.rows
    return found


def _statuses(observed: Sequence[Observed]) -> dict[str, Status]:
    return {name_of(one): one.status for one in observed if one.status is not None}


def held(shards: Shards, observed: Sequence[Observed]) -> dict[str, dict[str, float]]:
    """Server -> bytes per kind. Tables have the size that they had at that moment, states
    included.
    """
    statuses = _statuses(observed)
    rows = {}
    for server, parts in sorted(shards.items()):
        dense = [part for part in parts if part.kind == "dense"]
        tables = statuses[server].tables.values() if server in statuses else ()
        rows[server] = {
            "parameters": sum(part.bytes for part in dense),
            "optimizer states": sum(part.state_bytes for part in dense),
            "tables": sum(table.bytes for table in tables),
        }
    return rows


def shard_rows(shards: Shards, observed: Sequence[Observed]) -> list[tuple[str, tuple[str, ...]]]:
    """A row of `HEAD` for each of the largest parts."""
    statuses = _statuses(observed)
    every = [(server, part) for server, parts in shards.items() for part in parts]
    every.sort(key=lambda pair: -pair[1].bytes - pair[1].state_bytes)
    return [("", _row(server, part, statuses.get(server))) for server, part in every[:MOST_ROWS]]


def _row(server: str, part: Shard, status: Status | None) -> tuple[str, ...]:
    rows, values, states = float(part.shape[0] if part.shape else 1), part.bytes, part.state_bytes
    grown = status.tables.get(part.name) if status else None
    if part.kind == "table" and grown is not None:
        share = values / (values + states) if values + states else 0.0
        rows, values = grown.rows, round(grown.bytes * share)
        states = round(grown.bytes) - values
    kind = "growing table" if part.kind == "table" else "x".join(map(str, part.shape))
    return (
        part.variable,
        server,
        f"{part.name} ({kind})",
        f"{rows:,.0f}",
        size(values),
        size(states),
        "",
    )
