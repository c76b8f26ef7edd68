"""Where the model lies: a treemap of servers, and in each the slices that it holds, by bytes."""

from typing import Any, ClassVar

from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool, LabelSet, LayoutDOM
from bokeh.plotting import figure

from ..telemetry.recording import Shards
from ..telemetry.snapshot import Snapshot
from .feed import Feed
from .style import colours, dressed, size
from .treemap import Rectangle, squarified
from .views import View

__all__ = ["Placement", "tiles"]

WHOLE = Rectangle(0.0, 0.0, 16.0, 9.0)
GAP = 0.04
HEAD = 0.45  # height of a server's title
LETTER = 0.13  # width of a letter of a label
COLUMNS = ("x", "y", "width", "height", "label", "name", "server", "bytes", "shape", "colour")


class Placement(View):
    """The treemap."""

    title: ClassVar[str] = "Placement"

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        self._shown: Shards | None = None
        self._source = ColumnDataSource({name: [] for name in COLUMNS})
        self._titles = ColumnDataSource({"x": [], "y": [], "label": []})
        self._root = column(self._figure(), sizing_mode="stretch_width")

    @property
    def root(self) -> LayoutDOM:
        return self._root

    def _figure(self) -> figure:
        made = figure(
            x_range=(0, WHOLE.width), y_range=(0, WHOLE.height), height=620, tools="save",
            sizing_mode="stretch_width", toolbar_location=None,
            title="slices and tables by server; area: bytes with optimizer states",
        )  # fmt: skip
        dressed(made)
        made.axis.visible = made.grid.visible = False
        drawn = made.block(
            "x", "y", "width", "height", source=self._source, fill_color="colour",
            line_color="white", fill_alpha=0.55,
        )  # fmt: skip
        made.add_tools(HoverTool(renderers=[drawn], tooltips=[
            ("slice", "@name"), ("on", "@server"), ("shape", "@shape"), ("size", "@bytes"),
        ]))  # fmt: skip
        for source, style in ((self._source, "normal"), (self._titles, "bold")):
            made.add_layout(LabelSet(
                x="x", y="y", text="label", source=source, x_offset=4, y_offset=4,
                text_font_size="12px", text_font_style=style, text_color="#222",
            ))  # fmt: skip
        return made

    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        if self._shown == self.feed.shards:
            return
        self._shown = dict(self.feed.shards)
        self._source.data, self._titles.data = tiles(self._shown)


def tiles(shards: Shards) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The rectangles of all slices, and the titles of the servers; one colour per variable."""
    weights = {s: float(sum(p.bytes + p.state_bytes for p in held)) for s, held in shards.items()}
    servers = sorted((s for s in shards if weights[s]), key=lambda s: -weights[s])
    variables = sorted({part.variable for held in shards.values() for part in held})
    colour = dict(zip(variables, colours(variables), strict=True))
    found: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    titles: dict[str, list[Any]] = {"x": [], "y": [], "label": []}
    places = squarified([weights[server] for server in servers], WHOLE)
    for server, place in zip(servers, places, strict=True):
        outer = place.within(GAP)
        head = min(HEAD, outer.height / 2)
        inner = Rectangle(outer.x, outer.y, outer.width, outer.height - head)
        _append(
            titles, outer.x, outer.y + outer.height - head, f"{server}: {size(weights[server])}"
        )
        parts = sorted(
            (p for p in shards[server] if p.bytes + p.state_bytes),
            key=lambda part: -part.bytes - part.state_bytes,
        )
        boxes = squarified([float(p.bytes + p.state_bytes) for p in parts], inner)
        for part, box in zip(parts, boxes, strict=True):
            shape = " x ".join(map(str, part.shape))
            whole = size(part.bytes + part.state_bytes)
            _append(
                found, *box, _fitting(part.name, whole, box), part.name, server, whole, shape,
                colour[part.variable],
            )  # fmt: skip
    return found, titles


def _append(columns: dict[str, list[Any]], *values: Any) -> None:
    for known, value in zip(columns.values(), values, strict=True):
        known.append(value)


def _fitting(name: str, whole: str, box: Rectangle) -> str:
    """What of a label has room in a rectangle."""
    for text in (f"{name}  {whole}", name):
        if len(text) * LETTER < box.width and box.height > 0.3:
            return text
    return ""
