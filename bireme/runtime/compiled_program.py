"""`CompiledProgram`: a program with execution options, possibly data-parallel."""

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bireme.arrays.places import CUDAPlace, Place, cpu_places
from bireme.arrays.random import Clock
from bireme.arrays.values import LoDTensor, LoDTensorArray, lengths_to_lod
from bireme.drawing.program_graph import draw
from bireme.errors import FeedError, InvalidArgument, UnsupportedError, WrongType
from bireme.ir import Program
from bireme.monitoring.counters import tally
from bireme.passes.notes import Report
from bireme.passes.pipeline import Build
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy

from . import step_hook
from .effects import Runner
from .feeding import batch_size, check_fetches, from_loaders, read_fetches
from .fetching import as_single
from .replicas import Replicas, shares
from .scope import Scope

__all__ = ["CompiledProgram"]


class Runs(Runner, Protocol):
    """The executor's interface for compiled programs."""

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
        ...


class CompiledProgram:
    """A program prepared for running; `with_data_parallel` replicates it."""

    def __init__(self, program_or_graph: Any, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program_or_graph, Program):
            raise WrongType(
                f"CompiledProgram takes a Program, not a {type(program_or_graph).__name__}",
                hint="CompiledProgram(fluid.default_main_program())",
            )
        self._program = program_or_graph
        self._build = Build(build_strategy or BuildStrategy())
        self._execution = ExecutionStrategy()
        self._loss_name: str | None = None
        self._places: list[Place] | None = None
        self._replicas: Replicas | None = None
        self._step = -1
        self._drawn = False

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: "CompiledProgram | None" = None,
        places: Sequence[Place] | Place | None = None,
    ) -> "CompiledProgram":
        """Run one replica per place: by default `CPU_NUM` replicas, or the selected devices.

        Each batch is split among them; parameters change as they would with the whole batch.

        Raises:
            InvalidArgument: the loss is not a variable of the program, or there is no place.
        """
        if self._places is not None:
            raise UnsupportedError(
                "with_data_parallel was called twice", hint="make another CompiledProgram"
            )
        name = getattr(loss_name, "name", loss_name)
        if name is not None and name not in self._program.global_block().vars:
            raise InvalidArgument(f"loss '{name}' is not a variable of the program")
        self._loss_name = name
        self._execution = exec_strategy or self._execution
        self._build = Build(build_strategy or self._build.strategy, self._execution)
        self._places = _place_list(places)
        return self

    @property
    def program(self) -> Program:
        return self._program

    @property
    def passes(self) -> Report:
        """What the strategy made of the program: which passes were applied, how often, and why
        others were not. Prints as a table.
        """
        self._build.made(self._program)
        return self._build.report

    # -- running, for the executor ---------------------------------------------------------
    def run(
        self,
        executor: Runs,
        feed: Any,
        fetch_list: Any,
        scope: Scope,
        return_numpy: bool = True,
        return_merged: bool = True,
        *,
        prune: bool = False,
    ) -> list[Any]:
        """Implements `Executor.run` for this program."""
        places = self._places or [executor.place]
        _check_devices(places)
        self._draw()
        for _ in range(max(self._execution.num_iteration_per_run, 1)):
            results = self._run_once(executor, len(places), feed, fetch_list, scope, prune=prune)
        if return_merged:
            return [_merged(values, return_numpy=return_numpy) for values in results]
        return [[_shown(v, return_numpy=return_numpy) for v in values] for values in results]

    def _draw(self) -> None:
        """Draw the program once, if the strategy asks for it."""
        path = self._build.strategy.debug_graphviz_path
        if path and not self._drawn:
            self._drawn = True
            draw(self._program, path)

    def _run_once(
        self,
        executor: Runs,
        count: int,
        feed: Any,
        fetch_list: Any,
        scope: Scope,
        *,
        prune: bool,
    ) -> list[list[Any]]:
        if isinstance(feed, list | tuple) and count == 1 and len(feed) == 1:
            feed = feed[0]
        if count == 1:
            values = executor.step(
                self._program, feed, fetch_list, scope,
                return_numpy=False, prune=prune, build=self._build,
            )  # fmt: skip
            return [[value] for value in values]
        if len(self._program._trainers_endpoints) > 1:
            raise UnsupportedError(
                f"{count} replicas inside one of several collective trainers",
                hint="start one process per replica, with CPU_NUM=1",
            )
        if self._replicas is None or self._replicas.count != count:
            self._replicas = Replicas(
                self._program, count, self._execution.num_threads, self._build
            )
            executor.closers.append(_closer(self._replicas))
        fetches, update = read_fetches(fetch_list)
        check_fetches(self._program.global_block(), fetches)

        def execute(
            program: Program, given: Mapping[str, Any], names: Sequence[str], at: Scope, i: int
        ) -> list[Any]:
            step = self._step + self._program._runs_before
            clock = Clock(self._program._trainer_id * count + i, step)
            return executor.values(program, given, names, at, clock, prune=prune or update)

        self._step += 1
        self._program._runs = self._program._runs_before + self._step
        if self._program.__dict__.get("_loaders"):
            feed = from_loaders(self._program, shares(feed, count) if feed else [{}], count)
        hook = step_hook.installed
        if hook is not None:
            feed = hook.before(self._program, feed, scope)
        began = time.perf_counter()
        results = self._replicas.run(execute, feed, fetches, scope)
        tally.step(batch_size(feed), time.perf_counter() - began)
        if hook is not None:
            hook.after(self._program, scope, executor)
        return results


def _closer(replicas: Replicas) -> Any:
    known = weakref.ref(replicas)

    def close(error: BaseException | None) -> None:
        alive = known()
        if alive is not None:
            alive.close()

    return close


def _place_list(places: Sequence[Place] | Place | None) -> list[Place]:
    if places is None:
        return list(cpu_places())
    if isinstance(places, Place):
        return [places]
    if not places:
        raise InvalidArgument("an empty list of places", hint="leave `places` out, or name one")
    return list(places)


def _check_devices(places: Sequence[Place]) -> None:
    devices = [p for p in places if isinstance(p, CUDAPlace)]
    if len(devices) > 1:
        raise UnsupportedError(
            f"{len(devices)} devices in one process",
            hint="run one process per device: bireme launch --gpus 0,1 script.py",
        )


def _merged(values: list[Any], *, return_numpy: bool) -> Any:
    """The replicas' values of one fetch, concatenated."""
    if len(values) == 1:
        return _shown(values[0], return_numpy=return_numpy)
    if isinstance(values[0], LoDTensorArray):
        return _merged_arrays(values, return_numpy=return_numpy)
    arrays = [np.asarray(v) for v in values]
    whole = np.concatenate([a.reshape(1) if a.ndim == 0 else a for a in arrays])
    if return_numpy:
        return as_single(whole)
    lengths: list[list[int]] = []
    for value in values:
        for i, level in enumerate(_lengths(value)):
            lengths[i:i] = [] if i < len(lengths) else [[]]
            lengths[i] += level
    return LoDTensor(whole, lengths_to_lod(lengths))


def _merged_arrays(values: list[LoDTensorArray], *, return_numpy: bool) -> list[Any]:
    """Arrays of tensors, the tensors at each position concatenated."""
    counts = [len(array) for array in values]
    if len({*counts}) > 1:
        raise FeedError(
            f"the replicas' arrays hold {counts} tensors, which cannot be merged",
            hint="run with return_merged=False",
        )
    positions = zip(*values, strict=True)
    return [_merged(list(each), return_numpy=return_numpy) for each in positions]


def _lengths(value: Any) -> list[list[int]]:
    return value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []


def _shown(value: Any, *, return_numpy: bool) -> Any:
    if isinstance(value, LoDTensorArray):
        return [_shown(each, return_numpy=return_numpy) for each in value]
    if return_numpy and hasattr(value, "__array__"):
        return as_single(np.asarray(value))
    return value
