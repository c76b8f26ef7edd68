"""A compiled block: a list of steps over a frame.

Runs the steps, loads external values, stores lasting ones, and explains errors.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.ir import Block, Operator

from .context import BufferOffer, Env, Layout, RunContext
from .run_errors import explain, unset
from .scope import Cell
from .steps import CONTEXT, Frame, Step
from .units import Observer, Unit

__all__ = ["BoundPlan", "External", "Plan"]

Feeds = Iterable[tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class External:
    """An external name; if `reader` is set, the value must exist.

    `passing` means that values written to it do not outlive the run.
    """

    name: str
    slot: int
    reader: Operator | None
    passing: bool = False


@dataclass(slots=True, eq=False)
class Plan:
    """The compiled form of one block."""

    home: "weakref.ref[Block]"  # a plan does not keep its program alive
    layout: Layout
    units: Sequence[Unit]
    template: Frame
    feeds: Mapping[str, int]
    fetches: Sequence[int]
    owned: Sequence[bool]  # whether a fetched value must be copied
    loads: Sequence[External]
    stores: Sequence[External]
    children: Mapping[int, "Plan"] = field(default_factory=dict)

    def nested(self) -> "Iterator[Plan]":
        """The plans of all sub-blocks, recursively."""
        for child in self.children.values():
            yield child
            yield from child.nested()

    @property
    def block(self) -> Block:
        """The compiled block; the program is kept alive by the plan's user."""
        block = self.home()
        assert block is not None
        return block

    def run_inside(self, parent: Env, given: Mapping[str, Any]) -> Env:
        """Run this sub-block once with access to the values of `parent`."""
        frame = self.template.copy()
        outer = parent.context
        frame[CONTEXT] = RunContext(
            outer.scope, outer.clock, {}, outer.steps, outer.observe, parent
        )
        env = Env(self.layout, frame)
        for name, value in given.items():
            if name in self.layout.slots:
                env.set(name, value)
        lod = self.layout.lod
        for outside in self.loads:
            if outside.name not in given:
                frame[outside.slot], found = parent.pair(outside.name)
                if lod:
                    frame[outside.slot + lod] = found
        run_steps(self, outer.steps[self], frame, outer.observe)
        for inner in self.stores:
            if frame[inner.slot] is not None:
                parent.put(inner.name, frame[inner.slot], frame[inner.slot + lod] if lod else ())
        return env


@dataclass(slots=True, eq=False)
class BoundPlan:
    """A plan bound to the cells of a scope and to its effects."""

    plan: Plan
    steps: list[Step]
    cells: Mapping[str, Cell]
    loads: list[tuple[int, Cell, External]]
    stores: list[tuple[int, Cell]]
    inner: Mapping[Plan, list[Step]]
    bring: Callable[[Any], Any] | None = (
        None  # moves scope values left on another device to this one
    )
    offer: BufferOffer | None = None  # buffers offered by its effects for gradients that they send

    def run(self, context: RunContext, feeds: Feeds) -> Frame:
        """Run once; the returned frame holds the fetched values."""
        plan = self.plan
        frame = plan.template.copy()
        frame[CONTEXT] = context
        for slot, cell, external in self.loads:
            frame[slot] = cell.value
            if frame[slot] is None and external.reader is not None:
                raise unset(plan.block, external.name, external.reader)
        if self.bring is not None:
            self._bring_here(frame)
        if plan.layout.lod:
            self._load_lods(frame)
        for slot, value in feeds:
            frame[slot] = value
        run_steps(plan, self.steps, frame, context.observe)
        for slot, cell in self.stores:
            cell.value = frame[slot]
        if plan.layout.lod:
            for slot, cell in self.stores:
                cell.lod = frame[slot + plan.layout.lod] or ()
        return frame

    def _bring_here(self, frame: Frame) -> None:
        assert self.bring is not None
        for slot, cell, _ in self.loads:
            moved = self.bring(frame[slot])
            if moved is not frame[slot]:
                frame[slot] = cell.value = moved

    def _load_lods(self, frame: Frame) -> None:
        lod = self.plan.layout.lod
        for slot, cell, _ in self.loads:
            frame[slot + lod] = cell.lod


def run_steps(plan: Plan, steps: Sequence[Step], frame: Frame, observe: Observer | None) -> None:
    """Run the steps in order; errors name the operator and the user's line."""
    if observe is not None:
        watch(plan, steps, frame, observe)
        return
    step = None
    try:
        for step in steps:
            step(frame)
    except Exception as error:
        at = next((i for i, s in enumerate(steps) if s is step), 0)
        explain(error, plan.block, plan.units[at], Env(plan.layout, frame))


def watch(plan: Plan, steps: Sequence[Step], frame: Frame, observe: Observer) -> None:
    """Like `run_steps`, with an observer that runs each step."""
    env = Env(plan.layout, frame)
    for unit, step in zip(plan.units, steps, strict=True):
        try:
            observe(unit, env, step)
        except Exception as error:
            explain(error, plan.block, unit, env)
