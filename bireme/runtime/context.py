"""Per-run context, and access to values by name for effects and control flow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.random import Clock
from bireme.arrays.values import Lod, LoDTensor

from .scope import Cell, Scope
from .steps import CONTEXT, Frame

__all__ = ["BufferOffer", "Env", "Layout", "RunContext"]

BufferOffer = Callable[[str, tuple[int, ...], str], Array | None]  # for a name, shape and dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of names in a frame; `lod` is the distance from a value to its LoD, 0 if none is
    carried.
    """

    slots: Mapping[str, int]
    lod: int


@dataclass(slots=True)
class RunContext:
    """Per-run context: scope, trainer id, step."""

    scope: Scope
    clock: Clock
    cells: Mapping[str, Cell]
    steps: Mapping[Any, Any] = field(default_factory=dict)  # of the sub-blocks' plans
    observe: Any = None
    parent: "Env | None" = None
    offer: BufferOffer | None = None  # buffers offered for gradients that an effect will send


class Env:
    """The values of one run, by name: from the frame, enclosing blocks, or the scope."""

    __slots__ = ("context", "frame", "layout")

    def __init__(self, layout: Layout, frame: Frame) -> None:
        self.layout = layout
        self.frame = frame
        self.context: RunContext = frame[CONTEXT]

    @property
    def scope(self) -> Scope:
        return self.context.scope

    def get(self, name: str) -> Any:
        """The value of `name`, a LoDTensor if it has a LoD; None if it was never written."""
        value, lod = self.pair(name)
        return LoDTensor(value, lod) if lod else value

    def set(self, name: str, value: Any) -> None:
        """Set the value of `name`; lasting variables change in the scope immediately."""
        if isinstance(value, LoDTensor):
            self.put(name, value.array, value.offsets)
        else:
            self.put(name, value, ())

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several values by name."""
        for name, value in values.items():
            self.set(name, value)

    def pair(self, name: str) -> tuple[Any, Lod]:
        """The value of `name` and its LoD."""
        slot = self.layout.slots.get(name)
        if slot is not None and self.frame[slot] is not None:
            lod = self.layout.lod
            return self.frame[slot], (self.frame[slot + lod] if lod else ())
        if self.context.parent is not None:
            return self.context.parent.pair(name)
        cell = self.context.cells.get(name) or self.scope.find_var(name)
        return (None, ()) if cell is None else (cell.value, cell.lod)

    def slots(self, names: Iterable[str]) -> list[int] | None:
        """The slots of names that live in the frame alone: no cell, no LoD; else None. The same in
        every run of a plan.
        """
        if self.layout.lod or any(name in self.context.cells for name in names):
            return None
        found = [self.layout.slots.get(name) for name in names]
        return [slot for slot in found if slot is not None] if None not in found else None

    def put(self, name: str, value: Any, lod: Lod) -> None:
        """Set the value and LoD of `name`."""
        layout = self.layout
        slot = layout.slots.get(name)
        if slot is not None:
            self.frame[slot] = value
            if layout.lod:
                self.frame[slot + layout.lod] = lod
        cell = self.context.cells.get(name)
        if cell is None and slot is None:
            if self.context.parent is not None:
                self.context.parent.put(name, value, lod)
                return
            cell = self.scope.find_var(name) or self.scope.var(name)
        if cell is not None:
            cell.value, cell.lod = value, lod
