"""The executor: finds or compiles the plan of a program, feeds it, runs it, fetches.

A second run of the same version with the same feeds and fetches compiles nothing. This file
decides which plan runs; what a plan is stands in `compile` and `plan`.
"""

import atexit
import importlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bireme.errors import FeedError, UnsupportedError
from bireme.ir import Block, Program, default_main_program

from .arrays import to_host
from .compile import Request, compile
from .context import EffectContext, Env, RunContext
from .feeding import Feeder, feeder, fetch_names, known_feeds
from .observe import observer
from .places import Place, check_place, default_place
from .plan import BoundPlan, Observer, Plan, Unit
from .random import Clock
from .scope import Scope, global_scope
from .steps import Frame, Step
from .training import FetchHandler, over_dataset
from .values import LoDTensor

__all__ = ["Executor"]


@dataclass(slots=True)
class _Entry:
    """A plan with its feed checks, and its bindings to scopes."""

    plan: Plan
    feeders: list[tuple[str, int, Feeder]]
    bound: "weakref.WeakKeyDictionary[Scope, tuple[int, BoundPlan]]" = field(
        default_factory=weakref.WeakKeyDictionary
    )


@dataclass(slots=True)
class _Cache:
    """What an executor knows of one version of a program."""

    version: int
    clock: Clock
    entries: dict[Any, _Entry] = field(default_factory=dict)
    rewritten: Program | None = None


class Executor:
    """Runs programs on one place. `close()` tells every peer that this process is done."""

    def __init__(self, place: Place | None = None) -> None:
        self.place: Place = check_place(default_place() if place is None else place)
        self.closers: list[Callable[[], None]] = []
        self.compiled = 0
        self._caches: weakref.WeakKeyDictionary[Program, _Cache] = weakref.WeakKeyDictionary()
        self._closed = False
        _open.add(self)

    # -- doors -----------------------------------------------------------------------------
    def run(
        self,
        program: Any = None,
        feed: Mapping[str, Any] | None = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once and return what `fetch_list` names.

        Args:
            program: a Program or CompiledProgram; by default the default main program.
            feed: values by name: arrays, lists, numbers, LoDTensors, or (array, lengths) pairs.
            fetch_list: variables or names.
            scope: where lasting variables live; by default the global scope.
            return_numpy: arrays, or else LoDTensors.
            use_prune: run only what the fetches need.
        Plans are always cached, so `use_program_cache` changes nothing; nor do the names of feed
        and fetch.

        Raises:
            FeedError: a feed is missing or has the wrong shape or dtype, or a fetch does not exist.
            ProgramError: an operator failed; the message names it, its inputs and its source line.
        """
        self._check_open()
        scope = scope or global_scope()
        if program is not None and not isinstance(program, Program):
            return list(program.run(self, feed, fetch_list, scope, return_numpy, return_merged))
        program = program or default_main_program()
        if feed is not None and not isinstance(feed, Mapping):
            raise FeedError(f"feed is a {type(feed).__name__}", hint="feed a dict: {'x': array}")
        feed = feed or _from_loaders(program)
        env, plan = self._run(program, feed, fetch_list, scope, prune=use_prune)
        return _fetched(env, plan, return_numpy=return_numpy)

    def train_from_dataset(
        self,
        program: Program | None = None,
        dataset: Any = None,
        scope: Scope | None = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: FetchHandler | None = None,
    ) -> None:
        """Run `program` once for every batch of `dataset`; see `training.over_dataset`.

        `thread` is how many files are parsed at the same time (0: what the dataset says).
        """
        over_dataset(
            self,
            program,
            dataset,
            scope=scope,
            thread=thread,
            fetch_list=fetch_list,
            fetch_info=fetch_info,
            print_period=print_period,
            fetch_handler=fetch_handler,
        )

    infer_from_dataset = train_from_dataset

    def prepare(self, program: Program, block_idx: int, scope: Scope) -> Callable[[], None]:
        """A block compiled for a scope: each call runs it, with all values in that scope."""
        self._check_open()
        request = Request(block_idx, (), (), self.place, whole=True)
        bound = self._bind(compile(program.block(block_idx), request), scope)
        clock = Clock(trainer=program._trainer_id)

        def run(program: Program = program) -> None:  # the plan does not keep it alive
            bound.run(RunContext(scope, clock, bound.cells, bound.inner), ())
            clock.step += 1

        return run

    def close(self) -> None:
        """Run what was registered in `closers`, last first; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._caches.clear()
        while self.closers:
            self.closers.pop()()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def observe(self) -> Observer | None:
        """What watches each operator: the profiler, or the check for values that are not finite."""
        return observer()

    # -- running ---------------------------------------------------------------------------
    def _run(
        self,
        program: Program,
        feed: Mapping[str, Any],
        fetch_list: Any,
        scope: Scope,
        *,
        prune: bool,
    ) -> tuple[Env, Plan]:
        cache = self._cache(program)
        block = (cache.rewritten or program).global_block()
        entry = self._entry(cache, block, feed, fetch_names(block, fetch_list), prune=prune)
        bound = self._bound(entry, scope)
        feeds: list[tuple[int, Any]] = []
        lod = entry.plan.layout.lod
        for name, slot, check in entry.feeders:
            array, structure = check(feed[name])
            feeds.append((slot, array))
            if lod:
                feeds.append((slot + lod, structure))
        clock = Clock(cache.clock.trainer, cache.clock.step)
        context = RunContext(scope, clock, bound.cells, bound.inner, self.observe())
        frame = bound.run(context, feeds)
        cache.clock.step += 1
        return Env(entry.plan.layout, frame), entry.plan

    def _cache(self, program: Program) -> _Cache:
        cache = self._caches.get(program)
        if cache is None or cache.version != program.version:
            clock = cache.clock if cache is not None else Clock(trainer=program._trainer_id)
            cache = self._caches[program] = _Cache(program.version, clock)
            if program._trainers_endpoints:
                passes = importlib.import_module("bireme.passes.data_parallel")
                cache.rewritten = passes.data_parallel(program)
        return cache

    def _entry(
        self,
        cache: _Cache,
        block: Block,
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        *,
        prune: bool,
    ) -> _Entry:
        structured = any(isinstance(value, LoDTensor | tuple) for value in feed.values())
        key = (tuple(feed), fetches, structured, prune)
        entry = cache.entries.get(key)
        if entry is None:
            names = known_feeds(block, feed)
            request = Request(0, names, fetches, self.place, lod=structured, prune=prune)
            plan = compile(block, request)
            self.compiled += 1
            feeders = [(n, plan.feeds[n], feeder(block.vars[n], self.place)) for n in names]
            entry = cache.entries[key] = _Entry(plan, feeders)
        return entry

    def _bound(self, entry: _Entry, scope: Scope) -> BoundPlan:
        found = entry.bound.get(scope)
        if found is None or found[0] != scope.erased:
            found = entry.bound[scope] = (scope.erased, self._bind(entry.plan, scope))
        return found[1]

    def _bind(self, plan: Plan, scope: Scope) -> BoundPlan:
        """Find the plan's cells in a scope and link its effects."""
        names = {e.name for e in (*plan.loads, *plan.stores)} | _written_by_effects(plan)
        cells = {name: scope.find_var(name) or scope.var(name) for name in sorted(names)}
        return BoundPlan(
            plan,
            self._steps(plan, scope),
            cells,
            [(e.slot, cells[e.name], e) for e in plan.loads],
            [(e.slot, cells[e.name]) for e in plan.stores],
            {inner: self._steps(inner, scope) for inner in plan.nested()},
        )

    def _steps(self, plan: Plan, scope: Scope) -> list[Step]:
        return [unit.step or self._linked(plan, unit, scope) for unit in plan.units]

    def _linked(self, plan: Plan, unit: Unit, scope: Scope) -> Step:
        module, _, name = unit.provider.partition(":")
        provider = getattr(importlib.import_module(module), name)
        program = plan.block.program
        context = EffectContext(program, plan.block, self.place, scope, self)
        effect: Callable[[Env], None] = provider(list(unit.ops), context)
        layout, dead = plan.layout, unit.dead

        def step(frame: Frame) -> None:
            effect(Env(layout, frame))
            for slot in dead:
                frame[slot] = None

        return step

    def _check_open(self) -> None:
        if self._closed:
            raise UnsupportedError(
                "this executor is closed", hint="make a new Executor(place) to run again"
            )


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


def _from_loaders(program: Program) -> dict[str, Any]:
    """The next feed of the started loaders of a program (see `bireme.reader.dataloader`)."""
    feed: dict[str, Any] = {}
    for loader in program.__dict__.get("_loaders", ()):
        feed.update(loader.next())
    return feed


def _fetched(env: Env, plan: Plan, *, return_numpy: bool) -> list[Any]:
    """The fetched values; nothing that a later run could change is handed out."""
    lod = plan.layout.lod
    results = []
    for name_slot, shared in zip(plan.fetches, plan.owned, strict=True):
        value = env.frame[name_slot]
        structure = env.frame[name_slot + lod] if lod else ()
        results.append(_result(plan, name_slot, value, structure or (), shared, return_numpy))
    return results


def _result(plan: Plan, slot: int, value: Any, lod: Any, shared: bool, return_numpy: bool) -> Any:
    if value is None:
        name = next(n for n, s in plan.layout.slots.items() if s == slot)
        raise FeedError(
            f"fetch '{name}' holds nothing: no operator that ran wrote it",
            hint="fetch another variable, or run the program that computes it",
        )
    if not hasattr(value, "__array__") or isinstance(value, LoDTensor):
        return value
    array = to_host(value)
    if array is value and (shared or array.base is not None):
        array = np.array(array)
    if not return_numpy:
        return LoDTensor(array, lod)
    if lod:
        raise FeedError(
            "a fetched value has a LoD, which a NumPy array cannot carry",
            hint="run with return_numpy=False and read tensor.lod()",
        )
    return array


_open: "weakref.WeakSet[Executor]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for executor in list(_open):
        executor.close()
