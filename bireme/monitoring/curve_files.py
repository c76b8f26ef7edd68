"""Curves as files: tables read back, and pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bireme.drawing.curves import Figure, drawing

from .counters import tally

__all__ = ["read", "save_curves", "svg_of"]


def read(path: Path) -> dict[str, list[tuple[float, float]]]:
    """The points (step, value) of each figure in a table that `Curves.csv` wrote."""
    head, *lines = path.read_text().splitlines() or [""]
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in head.split(",")[2:]}
    for line in lines:
        step, _, *values = line.split(",")
        for name, value in zip(curves, values, strict=True):
            if value:
                curves[name].append((float(step), float(value)))
    return curves


def svg_of(runs: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], title: str) -> str:
    """A drawing with a panel per figure, and in it a line per run (process)."""
    names = dict.fromkeys(name for curves in runs.values() for name in curves)
    figures = [
        Figure(name, {run: curves[name] for run, curves in runs.items() if curves.get(name)})
        for name in names
    ]
    return drawing([f for f in figures if f.lines], title, x_label="step")


def save_curves(path: str | Path, title: str = "") -> Path:
    """Draw what this process has fetched so far as SVG: `fluid.save_curves("curves.svg")`.

    Each panel shows one figure (a loss, an accuracy) over the training steps, with an axis of its
    own. A path that ends with .csv gets the numbers instead.
    """
    path = Path(path)
    if path.suffix == ".csv":
        path.write_text(tally.curves.csv())
        return path
    curves: dict[str, list[tuple[float, float]]] = {}
    for step, _, figures in tally.curves.rows():
        for name, value in figures.items():
            curves.setdefault(name, []).append((step, value))
    path.write_text(svg_of({"": curves}, title))
    return path
