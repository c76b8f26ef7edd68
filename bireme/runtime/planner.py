"""Keeps plans: one per version of a program, feeds and fetches; one binding of each per scope.

Binding finds the cells of lasting variables and links effects to their providers, which are named
as text and imported here. This is the ground's only late binding.
"""

import importlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bireme.ir import Block, OpRole, Program

from .compile import Request, compile
from .context import EffectContext, Env
from .device import bring_to
from .feeding import Feeder, feeder, known_feeds
from .plan import BoundPlan, Plan, Unit
from .random import Clock
from .scope import Scope
from .sends import Room
from .steps import Frame, Step
from .strategies import BuildStrategy
from .values import LoDTensor

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["Entry", "Planner", "Version"]


@dataclass(slots=True)
class Entry:
    """A plan with its feed checks, and its bindings to scopes."""

    plan: Plan
    feeders: list[tuple[str, int, Feeder]]
    bound: "weakref.WeakKeyDictionary[Scope, tuple[int, BoundPlan]]" = field(
        default_factory=weakref.WeakKeyDictionary
    )


@dataclass(slots=True)
class Version:
    """What is known of one version of a program: how often it ran, and its plans."""

    number: int
    clock: Clock
    strategy: BuildStrategy | None = None
    entries: dict[Any, Entry] = field(default_factory=dict)
    rewritten: Program | None = None
    trains: bool = False  # a run of it is a step of training

    def serves(self, program: Program, strategy: BuildStrategy | None) -> bool:
        """Whether this is the program as it is now, exchanging gradients as `strategy` says."""
        same = strategy is None or strategy is self.strategy or not program._trainers_endpoints
        return self.number == program.version and same

    def block(self, program: Program) -> Block:
        """The global block that runs for `program`."""
        return (self.rewritten or program).global_block()


class Planner:
    """The plans of one executor; safe to ask from several threads."""

    def __init__(self, executor: "Executor") -> None:
        self._executor = weakref.ref(executor)
        self._place = executor.place
        self._versions: weakref.WeakKeyDictionary[Program, Version] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self.compiled = 0

    def clear(self) -> None:
        self._versions.clear()

    def version(self, program: Program, strategy: BuildStrategy | None = None) -> Version:
        """The present version of a program; plans of older ones are dropped."""
        with self._lock:
            known = self._versions.get(program)
            if known is None or not known.serves(program, strategy):
                clock = known.clock if known is not None else Clock(program._trainer_id)
                known = self._versions[program] = Version(program.version, clock, strategy)
                known.trains = any(op.role & OpRole.Backward for op in program.global_block().ops)
                if program._trainers_endpoints:
                    passes = importlib.import_module("bireme.passes.data_parallel")
                    made = passes.data_parallel(program, strategy)
                    known.rewritten = None if made is program else made
            return known

    def plan(
        self,
        version: Version,
        program: Program,
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        *,
        prune: bool,
    ) -> Entry:
        """The plan for these feeds and fetches, compiled when they are new."""
        structured = any(isinstance(value, LoDTensor | tuple) for value in feed.values())
        key = (tuple(feed), fetches, structured, prune)
        with self._lock:
            entry = version.entries.get(key)
            if entry is None:
                block = version.block(program)
                names = known_feeds(block, feed)
                request = Request(0, names, fetches, self._place, lod=structured, prune=prune)
                plan = compile(block, request)
                self.compiled += 1
                checks = [(n, plan.feeds[n], feeder(block.vars[n], self._place)) for n in names]
                entry = version.entries[key] = Entry(plan, checks)
            return entry

    def bound(self, entry: Entry, scope: Scope) -> BoundPlan:
        """The plan bound to a scope."""
        with self._lock:
            found = entry.bound.get(scope)
            if found is None or found[0] != scope.erased:
                found = entry.bound[scope] = (scope.erased, self.bind(entry.plan, scope))
            return found[1]

    def bind(self, plan: Plan, scope: Scope) -> BoundPlan:
        """Find a plan's cells in a scope and link its effects."""
        names = {e.name for e in (*plan.loads, *plan.stores)} | _written_by_effects(plan)
        cells = {name: scope.find_var(name) or scope.var(name) for name in sorted(names)}
        rooms: list[Room] = []
        return BoundPlan(
            plan,
            self._steps(plan, scope, rooms),
            cells,
            [(e.slot, cells[e.name], e) for e in plan.loads],
            [(e.slot, cells[e.name]) for e in plan.stores],
            {inner: self._steps(inner, scope, []) for inner in plan.nested()},
            bring_to(self._place),
            rooms[0] if rooms else None,
        )

    def _steps(self, plan: Plan, scope: Scope, rooms: list[Room]) -> list[Step]:
        return [unit.step or self._linked(plan, unit, scope, rooms) for unit in plan.units]

    def _linked(self, plan: Plan, unit: Unit, scope: Scope, rooms: list[Room]) -> Step:
        executor = self._executor()
        assert executor is not None
        module, _, name = unit.provider.partition(":")
        provider = getattr(importlib.import_module(module), name)
        context = EffectContext(plan.block.program, plan.block, self._place, scope, executor)
        effect: Callable[[Env], None] = provider(list(unit.ops), context)
        if hasattr(effect, "room"):
            rooms.append(effect.room)
        layout, dead = plan.layout, unit.dead

        def step(frame: Frame) -> None:
            effect(Env(layout, frame))
            for slot in dead:
                frame[slot] = None

        return step


def _written_by_effects(plan: Plan) -> set[str]:
    """The lasting variables that providers write; they change in the scope at once."""
    found: set[str] = set()
    for each in (plan, *plan.nested()):
        ops = (op for unit in each.units if unit.step is None for op in unit.ops)
        for name in (n for op in ops for n in op.output_arg_names):
            var = each.block._find_var_recursive(name)
            if var is not None and var.persistable:
                found.add(name)
    return found
