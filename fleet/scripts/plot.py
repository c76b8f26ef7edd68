"""`paddle.utils.plot.Ploter`: curves of losses, drawn with matplotlib if it is there."""

import os
from importlib import import_module
from typing import Any

from bireme.errors import InvalidArgument

__all__ = ["Ploter"]


class Ploter:
    """One curve for each title; `append` adds a point, `plot` draws them all.

    Nothing is drawn if DISABLE_PLOT is True in the environment, as in Fluid.
    """

    def __init__(self, *args: str) -> None:
        self.titles = args
        self.points: dict[str, tuple[list[float], list[float]]] = {t: ([], []) for t in args}

    def append(self, title: str, step: float, value: float) -> None:
        """Add a point to the curve `title`.

        Raises:
            InvalidArgument: there is no such curve.
        """
        if title not in self.points:
            raise InvalidArgument(f"there is no curve {title!r}", hint=f"name one of {self.titles}")
        steps, values = self.points[title]
        steps.append(step)
        values.append(float(value))

    def plot(self, path: str | None = None) -> None:
        """Draw into the file `path`, or on the screen."""
        if os.environ.get("DISABLE_PLOT") == "True":
            return
        pyplot: Any = import_module("matplotlib.pyplot")
        drawn = [title for title in self.titles if self.points[title][0]]
        for title in drawn:
            pyplot.plot(*self.points[title])
        pyplot.legend(drawn, loc="upper left")
        pyplot.savefig(path) if path else pyplot.show()
        pyplot.clf()

    def reset(self) -> None:
        """Forget all points."""
        for steps, values in self.points.values():
            steps.clear()
            values.clear()
