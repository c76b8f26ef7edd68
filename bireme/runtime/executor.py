"""The executor: checks feeds, finds the plan, runs it, returns the fetches.

Repeated runs of one version with the same feeds and fetches compile nothing. Plans are compiled in
`compile` and cached in `planner`.
"""

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bireme.arrays import blas
from bireme.arrays import thread_pool as lanes
from bireme.arrays.malloc import keep_memory
from bireme.arrays.places import CUDAPlace, Place, check_place, default_place
from bireme.arrays.random import Clock
from bireme.arrays.values import LoDTensor
from bireme.ending import at_exit, cause, in_order
from bireme.errors import UnsupportedError
from bireme.ir import Program, default_main_program
from bireme.monitoring.admin import opened
from bireme.monitoring.counters import tally
from bireme.monitoring.step_clock import FORWARD, step_clock
from bireme.passes.pipeline import Build

from . import step_hook
from .compile import Request, compile
from .compiled_program import CompiledProgram
from .context import RunContext
from .device import device_of
from .feeding import batch_size, check_kinds, from_loaders, read_fetches
from .fetching import fetched, figures
from .observe import observer
from .plan import Plan
from .planner import Planner, Version
from .scope import Scope, global_scope
from .steps import Frame
from .training import FetchHandler, over_dataset

__all__ = ["Executor"]


class Executor:
    """Runs programs on one place. `close()` tells servers and other ranks that this process is
    done.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place: Place = check_place(default_place() if place is None else place)
        opened()
        self.closers: list[Callable[[BaseException | None], None]] = []
        self._device = device_of(self.place)
        self._planner = Planner(self)
        self._threads: AbstractContextManager[None] = _AS_IT_IS
        if not isinstance(self.place, CUDAPlace):
            keep_memory()
            lanes.settle()
            self._threads = blas.SINGLE
        self._closed = False
        _open.add(self)

    @property
    def compiled(self) -> int:
        """The number of plans compiled so far."""
        return self._planner.compiled

    # -- what users call -------------------------------------------------------------------
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
            feed: values by name: arrays, lists, numbers, LoDTensors, or (array, lengths) pairs; or
                a list of one such dict for every replica.
            fetch_list: variables or names.
            scope: where lasting variables live; by default the global scope.
            return_numpy: arrays, or else LoDTensors.
            return_merged: one value for all replicas, or else a list per fetch.
            use_prune: run only what the fetches and the updates of an optimizer need. The result of
                `minimize` in `fetch_list` sets it.
        Plans are always cached, so `use_program_cache` changes nothing; nor do the names of feed
        and fetch.

        Raises:
            FeedError: a feed is missing or has the wrong shape or dtype, or a fetch does not exist.
            ProgramError: an operator failed; the message names it, its inputs and its source line.
        """
        self._check_open()
        scope = scope or global_scope()
        program = _carried(program or default_main_program())
        if isinstance(program, CompiledProgram):
            return program.run(
                self, feed, fetch_list, scope, return_numpy, return_merged, prune=use_prune
            )
        if isinstance(feed, list | tuple) and len(feed) == 1:
            (feed,) = feed
        check_kinds(program, feed)
        return self.step(
            program, feed, fetch_list, scope, return_numpy=return_numpy, prune=use_prune
        )

    def step(
        self,
        program: Program,
        feed: Mapping[str, Any] | None,
        fetch_list: Any,
        scope: Scope,
        *,
        return_numpy: bool = True,
        prune: bool = False,
        build: Build | None = None,
    ) -> list[Any]:
        """Run a program once, as `build` rewrites it."""
        self._check_open()
        names, update = read_fetches(fetch_list)
        prune = prune or update
        feed = feed or {}
        if program.__dict__.get("_loaders"):
            feed = from_loaders(program, [feed])[0]
        version = self._planner.version(program, build, (*names, *feed))
        clock = Clock(version.clock.trainer, version.clock.step)
        if not version.trains:
            plan, frame = self._run(version, program, feed, names, scope, clock, prune=prune)
            program._runs = version.clock.step = clock.step + 1
            return fetched(plan, frame, return_numpy=return_numpy)
        hook = step_hook.installed
        if hook is not None:
            feed = hook.before(program, feed, scope)
        step_clock.begin()
        try:
            plan, frame = self._run(version, program, feed, names, scope, clock, prune=prune)
        except BaseException:
            step_clock.drop()
            raise
        program._runs = version.clock.step = clock.step + 1
        phases = step_clock.end()
        results = fetched(plan, frame, return_numpy=return_numpy)
        tally.step(batch_size(feed), sum(phases[FORWARD:]), phases)
        if names:
            tally.fetched(figures(names, results, version.losses))
        if hook is not None:
            hook.after(program, scope, self)
        return results

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
        """Run `program` once per batch of `dataset`; see `training.over_dataset`.

        `thread` is the number of files parsed in parallel (0: the dataset's own setting).
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
        """Compile a block for a scope: each call runs it, with all values in that scope.

        Arrays referenced elsewhere are replaced, not overwritten, so a snapshot of the scope's
        arrays stays valid.
        """
        self._check_open()
        request = Request(block_idx, (), (), self.place, whole=True)
        with self._device:
            bound = self._planner.bind(compile(program.block(block_idx), request), scope)
        clock = Clock(program._trainer_id, program._runs_before)

        def run(program: Program = program) -> None:  # the plan does not keep the program alive
            with self._device, self._threads:
                bound.run(RunContext(scope, clock, bound.cells, bound.inner, observer()), ())
            clock.step += 1

        return run

    def values(
        self,
        program: Program,
        feed: Mapping[str, Any],
        fetches: Sequence[str],
        scope: Scope,
        clock: Clock,
        *,
        prune: bool = False,
    ) -> list[Any]:
        """Run once with a given clock, for callers that run a program as several replicas."""
        self._check_open()
        version = self._planner.version(program)
        plan, frame = self._run(
            version, program, feed, tuple(fetches), scope, clock, prune=prune, keep=False
        )
        return fetched(plan, frame, return_numpy=False)

    def close(self) -> None:
        """Tell servers and other ranks that this process is done; further calls do nothing.

        While an error is being handled (for example in `finally:`) they are told when the process
        ends, because only then is it known whether that error ended it.
        """
        if self._closed:
            return
        self._shut()
        if in_order(sys.exception()):
            self._leave(None)
        else:
            at_exit(self._leave)

    def _shut(self) -> None:
        self._closed = True
        self._planner.clear()

    def _leave(self, error: BaseException | None) -> None:
        """Call the registered `closers`, last first, with the error that ends the work."""
        while self.closers:
            self.closers.pop()(error)

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._shut()
        self._leave(None if in_order(error) else error)

    # -- running ---------------------------------------------------------------------------
    def _run(
        self,
        version: Version,
        program: Program,
        feed: Mapping[str, Any],
        fetches: tuple[str, ...],
        scope: Scope,
        clock: Clock,
        *,
        prune: bool = False,
        keep: bool = True,
    ) -> tuple[Plan, Frame]:
        with self._device:
            entry = self._planner.plan(version, program, feed, fetches, prune=prune)
            bound = self._planner.bound(entry, scope)
            feeds: list[tuple[int, Any]] = []
            lod = entry.plan.layout.lod
            for name, slot, check in entry.feeders:
                array, structure = check(feed[name])
                feeds.append((slot, array))
                if lod:
                    feeds.append((slot + lod, structure))
                if keep and name in entry.lasting:
                    _keep(scope, name, array, structure)
            context = RunContext(
                scope, clock, bound.cells, bound.inner, observer(), offer=bound.offer
            )
            with self._threads if entry.plan.units else _AS_IT_IS:
                return entry.plan, bound.run(context, feeds)

    def _check_open(self) -> None:
        if self._closed:
            raise UnsupportedError(
                "this executor is closed", hint="make a new Executor(place) to run again"
            )


def _keep(scope: Scope, name: str, array: Any, structure: Any) -> None:
    """Store a fed value as that of a variable that outlives the run."""
    cell = scope.find_var(name) or scope.var(name)
    held = array.copy() if hasattr(array, "copy") else array
    cell.put(LoDTensor(held, structure) if structure else held)


def _carried(program: Any) -> Any:
    """The CompiledProgram attached to a program as `_graph`; clones have none."""
    graph = getattr(program, "_graph", None)
    return graph if isinstance(graph, CompiledProgram) and graph.program is program else program


_AS_IT_IS = nullcontext()
_open: "weakref.WeakSet[Executor]" = weakref.WeakSet()


def _forget_closers() -> None:
    """What is to be closed belongs to the process that opened it."""
    for executor in list(_open):
        executor.closers.clear()


os.register_at_fork(after_in_child=_forget_closers)


@atexit.register
def _close_all() -> None:
    for executor in list(_open):
        executor._leave(cause())
