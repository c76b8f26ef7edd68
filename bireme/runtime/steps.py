"""One operator becomes one closure over the frame: nothing is looked up while running.

A frame is a list: slot 0 holds the run's context, then one slot per name, then (where LoD is
carried) one slot per name for its LoD. Closures come from generated factories, one per *shape* of
call, so that a program of a thousand operators compiles a handful of sources. This file knows
frames and kernels, not programs.
"""

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

__all__ = ["ALONE", "CONTEXT", "Frame", "Source", "Step"]

Frame = list[Any]
Step = Callable[[Frame], None]
CONTEXT = 0


class Source:
    """Writes the body of a step; constants become closure variables, so equal shapes share code."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._names: dict[int, str] = {}
        self._lines: list[str] = []

    def const(self, value: Any) -> str:
        """The expression for a fixed value."""
        if value is None:
            return "None"
        self._values.append(value)
        return f"c{len(self._values) - 1}"

    def slot(self, index: int) -> str:
        """The expression for what a frame slot holds."""
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
        """The expression for slot `index` as a buffer to write into, or None.

        Only an array that nobody but its `holders` refers to, and that is no view, may be
        overwritten: whoever keeps a fetched value, a snapshot or a view of it holds a reference,
        and keeps what he has.
        """
        x, o = self.local(f"x{name}", self.slot(index)), f"o{name}"
        alone, count = self.const(sys.getrefcount), self.const(ALONE + holders)
        return self.local(o, f"{x} if {alone}({x}) <= {count} and {x}.base is None else None")

    def line(self, text: str) -> None:
        self._lines.append(text)

    def free(self, indices: Iterable[int]) -> None:
        """Forget these slots."""
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


def _references_of_a_lonely_array() -> int:
    """What `sys.getrefcount` says in a step of an array that only the frame holds."""
    counts: list[int] = []
    source = Source()
    local = source.local("x", source.slot(0))
    source.line(f"{source.const(counts.append)}({source.const(sys.getrefcount)}({local}))")
    source.step()([np.empty(1)])
    return counts[0]


ALONE = _references_of_a_lonely_array()
