"""Line charts as SVG: panels one below the other, each with one scale per axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Figure", "drawing", "ticks"]

WIDTH, PANEL = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 34, 46
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
LEGEND = 8  # lines named in a panel
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One panel: the label of its vertical axis, and its lines by name."""

    label: str
    lines: Mapping[str, Sequence[Point]]


def drawing(figures: Sequence[Figure], title: str, x_label: str) -> str:
    """An SVG document; all panels have the same horizontal axis."""
    xs = [x for figure in figures for line in figure.lines.values() for x, _ in line]
    x_ticks = ticks(min(xs, default=0.0), max(xs, default=1.0))
    height = TOP + PANEL * max(1, len(figures))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    for i, figure in enumerate(figures):
        parts += _panel(figure, x_ticks, x_label, TOP + i * PANEL)
    if not figures:
        parts.append(f'<text x="{LEFT}" y="{TOP + 40}">nothing was fetched while training</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers, at equal distances, that enclose the range.

    >>> ticks(0.13, 2.31)
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    """
    if high <= low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    raw = (high - low) / max(1, about - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1, 2, 2.5, 5, 10) if raw <= m * unit * (1 + 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


def _panel(figure: Figure, x_ticks: list[float], x_label: str, top: float) -> list[str]:
    lines = {
        name: [(x, y) for x, y in line if math.isfinite(y)] for name, line in figure.lines.items()
    }
    ys = [y for line in lines.values() for _, y in line]
    y_ticks = ticks(min(ys, default=0.0), max(ys, default=1.0), about=5)
    bottom, right = top + PANEL - BOTTOM, WIDTH - RIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + across * (right - LEFT), bottom - up * (bottom - top - 10)

    parts = [_grid(at(x_ticks[0], y), right, y) for y in y_ticks]
    parts += [_mark(at(x, y_ticks[0])[0], bottom, x) for x in x_ticks]
    parts += [
        f'<text x="{(LEFT + right) / 2}" y="{bottom + 34}" text-anchor="middle">{escape(x_label)}'
        "</text>",
        f'<text transform="translate(16 {(top + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(figure.label)}</text>",
    ]
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>'
        )
        if name and i < LEGEND:
            parts.append(
                f'<text x="{right}" y="{top + 14 + 14 * i}" text-anchor="end" fill="{colour}">'
                f"{escape(name)}</text>"
            )
    return parts


def _grid(left: tuple[float, float], right: float, value: float) -> str:
    x, y = left
    return (
        f'<path d="M{x:.1f} {y:.1f}H{right}" stroke="#ddd"/>'
        f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>'
    )


def _mark(x: float, bottom: float, value: float) -> str:
    return (
        f'<path d="M{x:.1f} {bottom}v4" stroke="#888"/>'
        f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{value:,g}</text>'
    )
