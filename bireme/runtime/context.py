"""What a run knows beside its frame, and how effects and control flow reach values by name.

`Env` is what a provider sees of a run: values by name. This file knows scopes and frames, not how
plans are made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bireme.ir import Block, Operator, Program

from .places import Place
from .random import Clock
from .scope import Cell, Scope
from .sends import Room
from .steps import CONTEXT, Frame
from .values import Lod, LoDTensor

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["EffectContext", "Env", "Layout", "Provider", "RunContext"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where names live in a frame; `lod` is the distance from a value to its LoD, 0 for no LoD."""

    slots: Mapping[str, int]
    lod: int


@dataclass(slots=True)
class RunContext:
    """One run: where lasting values are, who runs, for the how manieth time."""

    scope: Scope
    clock: Clock
    cells: Mapping[str, Cell]
    steps: Mapping[Any, Any] = field(default_factory=dict)  # of the sub-blocks' plans
    observe: Any = None
    parent: "Env | None" = None
    room: Room | None = None  # memory for what a provider sends


@dataclass(frozen=True, slots=True)
class EffectContext:
    """What a provider learns when its operators are linked."""

    program: Program
    block: Block
    place: Place
    scope: Scope
    executor: "Executor"


class Env:
    """The values of one run, by name: those of the frame, of enclosing blocks, of the scope."""

    __slots__ = ("context", "frame", "layout")

    def __init__(self, layout: Layout, frame: Frame) -> None:
        self.layout = layout
        self.frame = frame
        self.context: RunContext = frame[CONTEXT]

    @property
    def scope(self) -> Scope:
        return self.context.scope

    def get(self, name: str) -> Any:
        """The value of `name`: a LoDTensor where there is a LoD; None if nothing wrote it."""
        value, lod = self.pair(name)
        return LoDTensor(value, lod) if lod else value

    def set(self, name: str, value: Any) -> None:
        """Give `name` a value; lasting variables change in the scope at once."""
        if isinstance(value, LoDTensor):
            self.put(name, value.array, value.offsets)
        else:
            self.put(name, value, ())

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

    def put(self, name: str, value: Any, lod: Lod) -> None:
        """Give `name` a value and a LoD."""
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


class Provider(Protocol):
    """What an effect row names: links a group of operators once; each run calls what it returns."""

    def __call__(self, ops: list[Operator], context: EffectContext) -> Callable[[Env], None]: ...
