"""What a tab is, and line charts over time that tabs share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from bokeh.layouts import column, gridplot
from bokeh.models import (
    ColumnDataSource,
    DataRange1d,
    DatetimeTickFormatter,
    HoverTool,
    LayoutDOM,
    Span,
)
from bokeh.plotting import figure

from ..telemetry.snapshot import Snapshot
from .feed import Feed
from .style import colour_of, dressed, place_of

__all__ = ["Chart", "Lines", "View"]

MOST_POINTS = 2000  # of one line, in the browser
MOST_NAMED = 10  # lines of a chart that a legend still helps to tell apart
Values = Mapping[str, float]  # name of a line -> value
Read = Callable[[Snapshot], Values]


class View(ABC):
    """A tab: `take` is given every snapshot, `show` one of them while the tab is open."""

    title: ClassVar[str]

    def __init__(self, feed: Feed) -> None:
        self.feed = feed

    @property
    @abstractmethod
    def root(self) -> LayoutDOM:
        """The content."""

    def clear(self) -> None:  # noqa: B027  # a view without history has nothing to do
        """Another job begins."""

    def take(self, new: Sequence[Snapshot]) -> None:  # noqa: B027
        """More history."""

    @abstractmethod
    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        """Show this moment; it is the latest if the window follows the job."""


class Chart:
    """One chart: a line over time for each name that `read` gives."""

    def __init__(self, title: str, unit: str, read: Read) -> None:
        self.title = title
        self.unit = unit
        self.read = read


class Lines:
    """Charts over one source of data; drawn anew when a line appears that was not there."""

    def __init__(self, charts: Sequence[Chart], height: int = 230) -> None:
        self._charts = list(charts)
        self._height = height
        self._past: list[tuple[float, list[Values]]] = []
        self._sent = 0  # entries of the past that the browser has
        self._names: list[list[str]] = []
        self._source = ColumnDataSource()
        self._marks: list[Span] = []
        self._range = DataRange1d(only_visible=True)
        self.root = column(sizing_mode="stretch_width")

    def add(self, chart: Chart) -> None:
        """One more chart; it begins with what is taken from now on."""
        self._charts.append(chart)
        if self._names:
            self._names.append([])

    def clear(self) -> None:
        self._past.clear()
        self._names, self._sent = [], 0

    def take(self, new: Sequence[Snapshot]) -> None:
        """More history; it is sent when the charts are shown."""
        for snapshot in new:
            self._past.append((snapshot.time * 1e3, [c.read(snapshot) for c in self._charts]))
        if len(self._past) > MOST_POINTS:
            half = MOST_POINTS // 2
            thinned = self._past[:half:2] + self._past[half:]
            self._sent = 0 if self._sent < len(self._past) else len(thinned)
            self._past = thinned

    def show(self, moment: float | None) -> None:
        """Bring the browser up to date; a vertical line marks `moment` (seconds)."""
        names = self._all_names()
        if names != self._names:
            self._names, self._sent = names, len(self._past)
            self._source.data = self._columns(self._past)
            self._draw()
        elif self._sent < len(self._past):
            new, self._sent = self._past[self._sent :], len(self._past)
            self._source.stream(self._columns(new), rollover=MOST_POINTS)
        for mark in self._marks:
            mark.update(location=(moment or 0.0) * 1e3, visible=moment is not None)

    def _all_names(self) -> list[list[str]]:
        """The lines of each chart."""
        known = self._names or [[] for _ in self._charts]
        found = [dict.fromkeys(names) for names in known]
        for _, values in self._past[self._sent :]:
            for names, each in zip(found, values, strict=False):
                names.update(dict.fromkeys(each))
        return [sorted(names, key=place_of) for names in found]

    def _columns(self, past: Sequence[tuple[float, list[Values]]]) -> dict[str, list[float]]:
        made = {"time": [at for at, _ in past]}
        for i, names in enumerate(self._names):
            for name in names:
                values = (each[i].get(name) if i < len(each) else None for _, each in past)
                made[f"{i} {name}"] = [float("nan") if v is None else v for v in values]
        return made

    def _draw(self) -> None:
        self._marks = []
        drawn = [self._figure(i, chart) for i, chart in enumerate(self._charts)]
        made = gridplot(
            [one for one in drawn if one is not None],
            ncols=2,
            sizing_mode="stretch_width",
            toolbar_location=None,
            merge_tools=False,
        )
        self.root.children = [made]

    def _figure(self, i: int, chart: Chart) -> Any:
        names = self._names[i]
        if not names:
            return None
        made = figure(
            height=self._height,
            sizing_mode="stretch_width",
            x_axis_type="datetime",
            title=f"{chart.title} ({chart.unit})" if chart.unit else chart.title,
            tools="xpan,xbox_zoom,xwheel_zoom,reset,save",
            x_range=self._range,
        )
        dressed(made)
        for name in names:
            colour = colour_of(name)
            legend = {"legend_label": name} if len(names) <= MOST_NAMED else {}
            line = made.line(
                "time", f"{i} {name}", source=self._source, color=colour, line_width=2, **legend
            )
            # a figure that only one snapshot has would be no line
            made.scatter("time", f"{i} {name}", source=self._source, color=colour, size=4)
            shown = [("", name), ("", f"@{{{i} {name}}}{{0.[0000]}} {chart.unit}")]
            made.add_tools(HoverTool(renderers=[line], tooltips=shown))
        if len(names) <= MOST_NAMED:
            made.add_layout(made.legend[0], "right")
        made.xaxis.formatter = _TIMES
        mark = Span(dimension="height", line_color="#555", line_dash="dashed", visible=False)
        made.add_layout(mark)
        self._marks.append(mark)
        return made


_TIMES = DatetimeTickFormatter(
    milliseconds="%H:%M:%S", seconds="%H:%M:%S", minsec="%H:%M:%S", minutes="%H:%M", hourmin="%H:%M"
)
