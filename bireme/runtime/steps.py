"""Turns one operator into one closure over the frame; nothing is looked up while it runs.

A frame is a list: slot 0 holds the run's context, then one slot per name, then (if LoD is carried)
one slot per name for its LoD. Closures come from generated factories, one per shape of call, so
that a program of a thousand operators compiles only a few sources.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from bireme.arrays.ownership import overwritable_expression

__all__ = ["CONTEXT", "Frame", "Source", "Step"]

Frame = list[Any]
Step = Callable[[Frame], None]
CONTEXT = 0
_STEP = 2  # references to an array in a step: the frame, and the step's variable


class Source:
    """Generates the body of a step; constants become closure variables, so equal shapes
    share code.
    """

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._names: dict[int, str] = {}
        self._lines: list[str] = []

    def const(self, value: Any) -> str:
        """The expression for a constant."""
        if value is None:
            return "None"
        self._values.append(value)
        return f"c{len(self._values) - 1}"

    def slot(self, index: int) -> str:
        """The expression for the value of a frame slot."""
        if index not in self._names:
            self._names[index] = f"f[{self.const(index)}]"
        return self._names[index]

    def slots(self, indices: Iterable[int]) -> str:
        """The expression for a list of slots."""
        return f"[{', '.join(self.slot(i) for i in indices)}]"

    def local(self, name: str, expression: str) -> str:
        self.line(f"{name} = {expression}")
        return name

    def offer(self, name: str, index: int, holders: int) -> str:
        """The expression for slot `index` as an output buffer, or None.

        An array may be overwritten only if it is no view and nothing but its `holders` refers to it
        (see `ownership`).
        """
        x, o = self.local(f"x{name}", self.slot(index)), f"o{name}"
        free = overwritable_expression(x, _STEP + holders, self.const)
        return self.local(o, f"{x} if {free} else None")

    def line(self, text: str) -> None:
        self._lines.append(text)

    def free(self, indices: Iterable[int]) -> None:
        """Clear these slots."""
        slots = [self.slot(i) for i in indices]
        if slots:
            self.line(f"{' = '.join(slots)} = None")

    def step(self) -> Step:
        """The finished closure."""
        body = "\n        ".join(self._lines or ["pass"])
        parameters = ", ".join(f"c{i}" for i in range(len(self._values)))
        source = f"def make({parameters}):\n    def step(f):\n        {body}\n    return step\n"
        made: Step = _factory(source)(*self._values)
        return made


@functools.lru_cache(maxsize=4096)
def _factory(source: str) -> Callable[..., Step]:
    space: dict[str, Any] = {}
    exec(compile(source, "<bireme step>", "exec"), space)
    factory: Callable[..., Step] = space["make"]
    return factory
