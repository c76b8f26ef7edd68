"""Caches plans per version of a program, feeds and fetches, and bindings per scope.

Binding finds the cells of lasting variables and imports the classes of effects by name. No other
code below the roles imports upwards.
"""

import importlib
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.arrays.places import CUDAPlace
from bireme.arrays.random import Clock
from bireme.arrays.values import LoDTensor
from bireme.ir import Block, OpRole, Program
from bireme.passes.pipeline import Build

from .compile import Request, compile
from .context import BufferOffer, Env
from .device import bring_to
from .effects import Effect, EffectContext, Runner
from .feeding import Feeder, check_fetches, feeder, known_feeds
from .phases import timed
from .plan import BoundPlan, Plan
from .scope import Scope
from .steps import Frame, Step
from .units import Unit

__all__ = ["Entry", "Planner", "Version"]


@dataclass(slots=True)
class Entry:
    """A plan with its feed checks and its bindings to scopes."""

    plan: Plan
    feeders: list[tuple[str, int, Feeder]]
    lasting: frozenset[str] = frozenset()  # fed variables that outlive the run
    bound: "weakref.WeakKeyDictionary[Scope, tuple[int, BoundPlan]]" = field(
        default_factory=weakref.WeakKeyDictionary
    )


@dataclass(slots=True)
class Version:
    """One version of a program: its plans, and how often it ran."""

    number: int
    clock: Clock
    build: Build | None = None
    entries: dict[Any, Entry] = field(default_factory=dict)
    rewritten: Program | None = None
    trains: bool = False  # a run of it is a training step
    losses: frozenset[str] = frozenset()  # what it minimizes

    def serves(self, program: Program, build: Build | None, names: Sequence[str]) -> bool:
        """Whether this is the program's current version, as `build` rewrites it, in which `names`
        can be fed and fetched.
        """
        same = build is None or build is self.build
        known = self.build is None or self.build.serves(program, names)
        return self.number == program.version and same and known

    def block(self, program: Program) -> Block:
        """The global block to run for `program`."""
        return (self.rewritten or program).global_block()


class Planner:
    """The plans of one executor; thread-safe."""

    def __init__(self, executor: Runner) -> None:
        self._executor = weakref.ref(executor)
        self._place = executor.place
        self._versions: weakref.WeakKeyDictionary[Program, Version] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self.compiled = 0

    def clear(self) -> None:
        self._versions.clear()

    def version(
        self, program: Program, build: Build | None = None, names: Sequence[str] = ()
    ) -> Version:
        """The current version of a program, in which `names` can be fed and fetched; plans of older
        versions are dropped.

        `build` rewrites the program. Without one it is run as the last one left it, and a
        collective program as the defaults say.
        """
        with self._lock:
            known = self._versions.get(program)
            if known is None or not known.serves(program, build, names):
                clock = Clock(program._trainer_id, program._runs_before)
                clock = known.clock if known is not None else clock
                build = build or (known.build if known is not None else None)
                if build is None and (program._trainers_endpoints or program._pipeline_opt):
                    build = Build()
                known = self._versions[program] = Version(program.version, clock, build)
                known.trains = any(op.role & OpRole.Backward for op in program.global_block().ops)
                known.losses = _losses(program)
                if build is not None:
                    build.device = isinstance(self._place, CUDAPlace)
                    made = build.made(program, names)
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
        """The plan for these feeds and fetches; compiled if new."""
        structured = any(isinstance(value, LoDTensor | tuple) for value in feed.values())
        key = (tuple(feed), fetches, structured, prune)
        with self._lock:
            entry = version.entries.get(key)
            if entry is None:
                check_fetches(program.global_block(), fetches)
                block = version.block(program)
                names = known_feeds(block, feed)
                request = Request(0, names, fetches, self._place, lod=structured, prune=prune)
                plan = compile(block, request)
                self.compiled += 1
                checks = [(n, plan.feeds[n], feeder(block.vars[n], self._place)) for n in names]
                lasting = frozenset(n for n in names if block.vars[n].persistable)
                entry = version.entries[key] = Entry(plan, checks, lasting)
            return entry

    def bound(self, entry: Entry, scope: Scope) -> BoundPlan:
        """The plan bound to a scope."""
        with self._lock:
            found = entry.bound.get(scope)
            if found is None or found[0] != scope.erased:
                found = entry.bound[scope] = (scope.erased, self.bind(entry.plan, scope))
            return found[1]

    def bind(self, plan: Plan, scope: Scope) -> BoundPlan:
        """Bind a plan to the cells of a scope and to its effects."""
        names = {e.name for e in (*plan.loads, *plan.stores)} | _written_by_effects(plan)
        cells = {name: scope.find_var(name) or scope.var(name) for name in sorted(names)}
        passing = {e.name for e in plan.loads if e.passing}
        offers: list[BufferOffer] = []
        return BoundPlan(
            plan,
            timed(plan.units, self._steps(plan, scope, offers)),
            {name: cell for name, cell in cells.items() if name not in passing},
            [(e.slot, cells[e.name], e) for e in plan.loads],
            [(e.slot, cells[e.name]) for e in plan.stores],
            {inner: self._steps(inner, scope, []) for inner in plan.nested()},
            bring_to(self._place),
            offers[0] if offers else None,
        )

    def _steps(self, plan: Plan, scope: Scope, offers: list[BufferOffer]) -> list[Step]:
        return [unit.step or self._bound_effect(plan, unit, scope, offers) for unit in plan.units]

    def _bound_effect(
        self, plan: Plan, unit: Unit, scope: Scope, offers: list[BufferOffer]
    ) -> Step:
        executor = self._executor()
        assert executor is not None
        module, _, name = unit.provider.partition(":")
        provider: type[Effect] = getattr(importlib.import_module(module), name)
        context = EffectContext(plan.block.program, plan.block, self._place, scope, executor)
        effect = provider.bind(list(unit.ops), context)
        if effect.offers_buffers:
            offers.append(effect.gradient_buffer)
        layout, dead, run = plan.layout, unit.dead, effect.run

        def step(frame: Frame) -> None:
            run(Env(layout, frame))
            for slot in dead:
                frame[slot] = None

        return step


def _losses(program: Program) -> frozenset[str]:
    """What `minimize` was called on: the results of the operators that carry the role Loss."""
    return frozenset(
        name
        for op in program.global_block().ops
        if op.role & OpRole.Loss and not op.role & OpRole.Backward
        for name in op.output_arg_names
    )


def _written_by_effects(plan: Plan) -> set[str]:
    """The lasting variables that effects write; they change in the scope immediately."""
    found: set[str] = set()
    for each in (plan, *plan.nested()):
        ops = (op for unit in each.units if unit.step is None for op in unit.ops)
        for name in (n for op in ops for n in op.output_arg_names):
            var = each.block._find_var_recursive(name)
            if var is not None and var.persistable:
                found.add(name)
    return found
