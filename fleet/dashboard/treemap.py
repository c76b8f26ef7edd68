"""Squarified treemaps: rectangles whose areas are given, as square as possible.

Bruls, Huizing, van Wijk: Squarified Treemaps, 2000.
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Rectangle", "squarified"]


class Rectangle(NamedTuple):
    """Left, bottom, width and height."""

    x: float
    y: float
    width: float
    height: float

    def within(self, margin: float) -> "Rectangle":
        """The rectangle without a margin on each side."""
        width, height = max(0.0, self.width - 2 * margin), max(0.0, self.height - 2 * margin)
        return Rectangle(self.x + margin, self.y + margin, width, height)


def squarified(sizes: Sequence[float], whole: Rectangle) -> list[Rectangle]:
    """A rectangle for each positive size, in order, which together fill `whole`. Largest first
    gives the best shapes.
    """
    scale = whole.width * whole.height / (sum(sizes) or 1.0)
    areas = [size * scale for size in sizes]
    placed: list[Rectangle] = []
    left, at = whole, 0
    while at < len(areas):
        side = min(left.width, left.height)
        end = at + 1
        while end < len(areas) and _worst(areas[at : end + 1], side) <= _worst(areas[at:end], side):
            end += 1
        row, left = _row(areas[at:end], left)
        placed += row
        at = end
    return placed


def _worst(areas: Sequence[float], side: float) -> float:
    """The ratio of the sides of the least square rectangle of a row along `side`."""
    total = sum(areas)
    if total <= 0 or side <= 0:
        return float("inf")
    return max(
        side * side * max(areas) / (total * total), total * total / (side * side * min(areas))
    )


def _row(areas: Sequence[float], left: Rectangle) -> tuple[list[Rectangle], Rectangle]:
    """One row of rectangles along the shorter side, and what is left beside it."""
    total, placed = sum(areas), []
    if left.width >= left.height:  # a column at the left
        width, y = total / (left.height or 1.0), left.y
        for area in areas:
            placed.append(Rectangle(left.x, y, width, area / (width or 1.0)))
            y += placed[-1].height
        return placed, Rectangle(left.x + width, left.y, left.width - width, left.height)
    height, x = total / (left.width or 1.0), left.x
    for area in areas:
        placed.append(Rectangle(x, left.y, area / (height or 1.0), height))
        x += placed[-1].width
    return placed, Rectangle(left.x, left.y + height, left.width, left.height - height)
