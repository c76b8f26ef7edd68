"""Colours, fonts, and how numbers are written."""

import time
from collections.abc import Sequence
from html import escape
from typing import Any

from bokeh.palettes import Category10, Turbo256

__all__ = [
    "PHASE_COLOURS",
    "SHEET",
    "STATE_SHEET",
    "clock",
    "colour_of",
    "colours",
    "dressed",
    "duration",
    "html_table",
    "place_of",
    "seconds",
    "size",
]

PHASE_COLOURS = {
    "data": "#9c9ede",
    "forward": "#3182bd",
    "backward": "#9ecae1",
    "send": "#fd8d3c",
    "wait": "#c4c4c4",
    "receive": "#fdd0a2",
    "update": "#31a354",
}
SERVERS = ("#333333", "#7f7f7f", "#b0b0b0", "#8c6d31", "#bd9e39")
FONT = "system-ui, 'DejaVu Sans', sans-serif"
SHEET = f"""
:host {{ font-family: {FONT}; font-size: 14px; color: #222; }}
.bk-tab {{ font-size: 14px; padding: 6px 14px; }}
"""
STATE_SHEET = """
.state { color: #666; margin-left: 1em; }
"""
TABLE_SHEET = (
    SHEET
    + """
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; border-bottom: 1px solid #999; padding: 4px 12px 4px 0; }
td { border-bottom: 1px solid #e4e4e4; padding: 4px 12px 4px 0; white-space: nowrap; }
td.last { white-space: normal; }
.right { text-align: right; }
tr.dead td { color: #b3261e; }
tr.waits td { color: #8a5a00; }
.note { margin: 8px 0; }
.warn { color: #8a5a00; font-weight: 600; }
.muted { color: #666; }
"""
)


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each name."""
    if len(names) <= len(Category10[10]):
        return list(Category10[10][: len(names)])
    step = (len(Turbo256) - 1) / (len(names) - 1)
    return [Turbo256[round(i * step)] for i in range(len(names))]


def colour_of(name: str) -> str:
    """The colour of a line: a process has the same one in every chart, and so has a phase."""
    if name in PHASE_COLOURS:
        return PHASE_COLOURS[name]
    number = place_of(name)[-1]
    return SERVERS[number % len(SERVERS)] if "server" in name else Category10[10][number % 10]


def place_of(name: str) -> tuple[int, str, int]:
    """Where a line stands in a legend: phases in their order, processes by role and number."""
    if name in PHASE_COLOURS:
        return list(PHASE_COLOURS).index(name), "", 0
    words, _, number = name.rpartition(" ")
    return 0, words, int(number) if number.isdigit() else 0


def dressed(made: Any) -> None:
    """Give a figure the look that all share."""
    made.title.text_font = made.axis.axis_label_text_font = FONT
    made.title.text_font_size = "13px"
    made.axis.major_label_text_font = FONT
    made.axis.major_label_text_font_size = "11px"
    made.axis.axis_line_color = made.axis.major_tick_line_color = "#999"
    made.axis.minor_tick_line_color = None
    made.grid.grid_line_color = "#ececec"
    made.outline_line_color = None
    made.toolbar.autohide = True
    made.toolbar.logo = None


def html_table(
    head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], right: Sequence[str] = ()
) -> str:
    """A table; each row has a class for its colour."""
    sides = ["right" if name in right else "" for name in head]
    sides[-1] += " last"
    cells = "".join(f"<th class='{s}'>{escape(n)}</th>" for n, s in zip(head, sides, strict=True))
    body = "".join(
        f"<tr class='{kind}'>"
        + "".join(f"<td class='{s}'>{escape(c)}</td>" for c, s in zip(row, sides, strict=True))
        + "</tr>"
        for kind, row in rows
    )
    return f"<table><tr>{cells}</tr>{body}</table>"


# -- numbers -----------------------------------------------------------------------------------
def clock(moment: float) -> str:
    """The time of day; with the date if it is another than today's."""
    same = time.strftime("%F", time.localtime(moment)) == time.strftime("%F")
    return time.strftime("%H:%M:%S" if same else "%F %H:%M:%S", time.localtime(moment))


def duration(value: float) -> str:
    """
    >>> duration(7.2), duration(75), duration(7300)
    ('7 s', '1 min 15 s', '2 h 1 min')
    """
    whole = int(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def seconds(value: float) -> str:
    """
    >>> seconds(0.00425), seconds(2.5), seconds(0)
    ('4.25 ms', '2.50 s', '-')
    """
    return "-" if value <= 0 else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.2f} s"


def size(value: float) -> str:
    """
    >>> size(512), size(20480), size(3.5e9)
    ('512 B', '20.5 kB', '3.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
