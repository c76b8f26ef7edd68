"""A compiled block: a list of steps over a frame. Running it decides nothing.

This file runs steps, loads what comes from outside, stores what lasts, and explains what went
wrong.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.ir import Block, Operator

from .context import Env, Layout, RunContext
from .faults import explain, unset
from .scope import Cell
from .sends import Room
from .steps import CONTEXT, Frame, Step

__all__ = ["BoundPlan", "External", "Observer", "Plan", "Unit"]

Feeds = Iterable[tuple[int, Any]]
Observer = Callable[["Unit", Env, Step], None]


@dataclass(frozen=True, slots=True)
class Unit:
    """A step and its operators: one, or a group of effects that is linked when a scope is known."""

    ops: tuple[Operator, ...]
    index: int
    step: Step | None
    dead: tuple[int, ...] = ()
    provider: str = ""


@dataclass(frozen=True, slots=True)
class External:
    """A name that comes from outside; `reader` must find it set, if anyone must."""

    name: str
    slot: int
    reader: Operator | None


@dataclass(slots=True, eq=False)
class Plan:
    """What `compile` decided for one block."""

    home: "weakref.ref[Block]"  # a plan keeps no program alive
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
        """The plans of all sub-blocks, however deep."""
        for child in self.children.values():
            yield child
            yield from child.nested()

    @property
    def block(self) -> Block:
        """The block that was compiled; whoever runs the plan holds its program."""
        block = self.home()
        assert block is not None
        return block

    def run_inside(self, parent: Env, given: Mapping[str, Any]) -> Env:
        """Run this sub-block once under the values of `parent`."""
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
    """A plan with the cells of a scope and its effects linked."""

    plan: Plan
    steps: list[Step]
    cells: Mapping[str, Cell]
    loads: list[tuple[int, Cell, External]]
    stores: list[tuple[int, Cell]]
    inner: Mapping[Plan, list[Step]]
    bring: Callable[[Any], Any] | None = None  # what other places left in the scope moves here
    room: Room | None = None  # where the provider of its effects wants what it will send

    def run(self, context: RunContext, feeds: Feeds) -> Frame:
        """Run once; the frame holds what is to be fetched."""
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
    """Run the steps in order; an error names the operator and the user's line."""
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
