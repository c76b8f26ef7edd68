"""The executor: checks what it is given, finds the plan, runs it, hands out what was asked for.

A second run of the same version with the same feeds and fetches compiles nothing. How plans are
made and kept stands in `compile` and `planner`.
"""

import atexit
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bireme.errors import FeedError, InvalidArgument, UnsupportedError
from bireme.ir import Program, default_main_program
from bireme.rpc.admin import opened
from bireme.rpc.memory import keep_memory
from bireme.rpc.tally import tally

from . import lanes
from .compile import Request, compile
from .compiled_program import CompiledProgram
from .context import RunContext
from .device import device_of
from .feeding import batch_size, fetch_names
from .fetching import fetched
from .observe import observer
from .places import CUDAPlace, Place, check_place, default_place
from .plan import Plan
from .planner import Planner, Version
from .random import Clock
from .scope import Scope, global_scope
from .steps import Frame
from .strategies import BuildStrategy
from .training import FetchHandler, over_dataset

__all__ = ["Executor"]


class Executor:
    """Runs programs on one place. `close()` tells every peer that this process is done."""

    def __init__(self, place: Place | None = None) -> None:
        self.place: Place = check_place(default_place() if place is None else place)
        opened()
        self.closers: list[Callable[[BaseException | None], None]] = []
        self._device = device_of(self.place)
        self._planner = Planner(self)
        if not isinstance(self.place, CUDAPlace):
            keep_memory()
            lanes.settle()
        self._closed = False
        _open.add(self)

    @property
    def compiled(self) -> int:
        """How many plans were compiled so far."""
        return self._planner.compiled

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
            return_merged: one value for all replicas, or else a list per fetch.
            use_prune: run only what the fetches need.
        Plans are always cached, so `use_program_cache` changes nothing; nor do the names of feed
        and fetch.

        Raises:
            FeedError: a feed is missing or has the wrong shape or dtype, or a fetch does not exist.
            ProgramError: an operator failed; the message names it, its inputs and its source line.
        """
        self._check_open()
        scope = scope or global_scope()
        program = program or default_main_program()
        if isinstance(program, CompiledProgram):
            return program.run(self, feed, fetch_list, scope, return_numpy, return_merged)
        _check_kinds(program, feed)
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
        strategy: BuildStrategy | None = None,
    ) -> list[Any]:
        """Run a program once; `strategy` says how gradients travel between trainers."""
        self._check_open()
        version = self._planner.version(program, strategy)
        names = fetch_names(version.block(program), fetch_list)
        clock = Clock(version.clock.trainer, version.clock.step)
        feed = feed or _from_loaders(program)
        began = time.perf_counter()
        plan, frame = self._run(version, program, feed, names, scope, clock, prune=prune)
        version.clock.step += 1
        if version.trains:
            tally.step(batch_size(feed), time.perf_counter() - began)
        return fetched(plan, frame, return_numpy=return_numpy)

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
        """A block compiled for a scope: each call runs it, with all values in that scope.

        Arrays that somebody else holds are replaced, not written, so a snapshot of the scope's
        arrays stays what it was.
        """
        self._check_open()
        request = Request(block_idx, (), (), self.place, whole=True)
        with self._device:
            bound = self._planner.bind(compile(program.block(block_idx), request), scope)
        clock = Clock(trainer=program._trainer_id)

        def run(program: Program = program) -> None:  # the plan does not keep it alive
            with self._device:
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
    ) -> list[Any]:
        """Run once as of a clock, for callers that run one program as several replicas."""
        self._check_open()
        version = self._planner.version(program)
        plan, frame = self._run(version, program, feed, tuple(fetches), scope, clock)
        return fetched(plan, frame, return_numpy=False)

    def close(self) -> None:
        """Tell the peers that this process is done; a second call does nothing."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        """Run what was registered in `closers`, last first, with the error that ends the work."""
        if self._closed:
            return
        self._closed = True
        self._planner.clear()
        while self.closers:
            self.closers.pop()(error)

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        orderly = isinstance(error, SystemExit) and not error.code
        self._leave(None if orderly else error)

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
            context = RunContext(
                scope, clock, bound.cells, bound.inner, observer(), room=bound.room
            )
            return entry.plan, bound.run(context, feeds)

    def _check_open(self) -> None:
        if self._closed:
            raise UnsupportedError(
                "this executor is closed", hint="make a new Executor(place) to run again"
            )


def _check_kinds(program: Any, feed: Any) -> None:
    if not isinstance(program, Program):
        raise InvalidArgument(
            f"cannot run a {type(program).__name__}", hint="run a Program or a CompiledProgram"
        )
    if feed is not None and not isinstance(feed, Mapping):
        raise FeedError(f"feed is a {type(feed).__name__}", hint="feed a dict: {'x': array}")


def _from_loaders(program: Program) -> dict[str, Any]:
    """The next feed of the started loaders of a program (see `bireme.reader.dataloader`)."""
    feed: dict[str, Any] = {}
    for loader in program.__dict__.get("_loaders", ()):
        feed.update(loader.next())
    return feed


_open: "weakref.WeakSet[Executor]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for executor in list(_open):
        executor.close()
