"""The curves of a run: every one-element value that a training step fetched, by step.

Memory is bounded: neighbouring points are merged into their mean when there are too many.
"""

import time
from collections.abc import Mapping, Sequence

__all__ = ["POINTS", "Curves"]

POINTS = 2048  # kept per process: between half as many and as many
STEP, SECONDS = "step", "seconds"
Row = tuple[int, float, dict[str, float]]


class Curves:
    """Points of (step, seconds since the first, mean of each figure)."""

    def __init__(self, points: int = POINTS) -> None:
        self._most = points
        self._stride = 1
        self._rows: list[Row] = []
        self._open: list[Row] = []
        self._began = time.monotonic()

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Add what one step fetched."""
        if not figures:
            return
        self._open.append((step, time.monotonic() - self._began, dict(figures)))
        if len(self._open) >= self._stride:
            self._rows.append(_mean(self._open))
            self._open = []
        if len(self._rows) >= self._most:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=False)
            self._rows = [_mean(pair) for pair in pairs]
            self._stride *= 2

    def rows(self) -> list[Row]:
        """All points in the order of steps, the unfinished one included."""
        rows, last = list(self._rows), list(self._open)
        return [*rows, _mean(last)] if last else rows

    def csv(self) -> str:
        """A table with columns step, seconds and one for each figure; empty without a point."""
        rows = self.rows()
        names = list(dict.fromkeys(name for _, _, figures in rows for name in figures))
        lines = [",".join([STEP, SECONDS, *names])]
        for step, seconds, figures in rows:
            values = (f"{figures[name]:.7g}" if name in figures else "" for name in names)
            lines.append(",".join([str(step), f"{seconds:.3f}", *values]))
        return "\n".join(lines) + "\n" if rows else ""


def _mean(rows: Sequence[Row]) -> Row:
    step, seconds, _ = rows[-1]
    values: dict[str, list[float]] = {}
    for _, _, figures in rows:
        for name, value in figures.items():
            values.setdefault(name, []).append(value)
    return step, seconds, {name: sum(found) / len(found) for name, found in values.items()}
