"""Stacked horizontal bars: a row for each process, a colour for each kind."""

from collections.abc import Mapping
from typing import Any

from bokeh.models import ColumnDataSource, FactorRange, HoverTool
from bokeh.plotting import figure

from .style import dressed

__all__ = ["Bars"]

MARGIN = 110  # pixels for title, legend and axis


class Bars:
    """`root` is the chart. Its height follows the number of rows: `row` pixels each."""

    def __init__(
        self, title: str, unit: str, colours: Mapping[str, str], row: int, legend: str
    ) -> None:
        self._kinds = list(colours)
        self._row = row
        self._source = ColumnDataSource({"name": [], **{kind: [] for kind in self._kinds}})
        self._range = FactorRange()
        self.root = figure(
            y_range=self._range,
            height=4 * row + MARGIN,
            sizing_mode="stretch_width",
            title=f"{title} ({unit})",
            tools="save",
        )
        dressed(self.root)
        bars = self.root.hbar_stack(
            self._kinds, y="name", height=0.75, source=self._source, color=list(colours.values()),
            legend_label=self._kinds, line_color="white",
        )  # fmt: skip
        for kind, bar in zip(self._kinds, bars, strict=True):
            shown = [("", f"@name: {kind}"), ("", f"@{{{kind}}}{{0.000}} {unit}")]
            self.root.add_tools(HoverTool(renderers=[bar], tooltips=shown))
        self.root.add_layout(self.root.legend[0], legend)
        self.root.x_range.start = 0
        self.root.ygrid.grid_line_color = None

    def show(self, rows: Mapping[str, Mapping[str, float]]) -> None:
        """The values of each row by kind; the first row is on top."""
        names = list(reversed(list(rows)))
        if names != list(self._range.factors):
            self._range.factors = names
            self.root.height = MARGIN + self._row * max(1, len(names))
        data: dict[str, Any] = {"name": list(rows)}
        for kind in self._kinds:
            data[kind] = [row.get(kind, 0.0) for row in rows.values()]
        if data != dict(self._source.data):
            self._source.data = data
