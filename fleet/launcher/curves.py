"""Draws the curves that the trainers of a job left beside their logs."""

from collections.abc import Sequence
from pathlib import Path

from bireme.monitoring.curve_files import read, svg_of
from bireme.paths import new_file

from .child import Child

__all__ = ["draw_curves"]

NAME = "curves.svg"


def draw_curves(children: Sequence[Child], log_dir: Path) -> Path | None:
    """Draw one picture of all trainers; None if no trainer fetched a number.

    Raises:
        OSError: the picture cannot be written.
    """
    path = log_dir / NAME
    path.unlink(missing_ok=True)
    found = {str(c.seat): read(c.curves) for c in children if c.curves and c.curves.exists()}
    if not found:
        return None
    with new_file(path) as file:
        file.write(svg_of(found, "what the trainers fetched").encode())
    return path
