"""Data parallelism inside one process: replicas of the model on threads, with one update.

The program is split in two: what each replica computes on its part of the batch (forward and
backward), and what is computed once (updates, schedules, communication). Gradients are the means
over the replicas, summed in replica order: with even parts the result is that of the whole batch,
and it is reproducible.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, namespace_of
from bireme.arrays.values import LoDTensor, LoDTensorArray, SelectedRows, lengths_to_lod, to_lod
from bireme.errors import FeedError
from bireme.ir import Operator, OpRole, Program
from bireme.passes.pipeline import Build
from bireme.passes.strategies import GradientScaleStrategy
from bireme.passes.uses import run_once

from .scope import Scope

__all__ = ["Halves", "Replicas", "cut", "joined", "shares"]

Run = Callable[[Program, Mapping[str, Any], Sequence[str], Scope, int], list[Any]]


@dataclass(frozen=True, slots=True)
class Halves:
    """A split program, and the names passed from the first part to the second."""

    each: Program
    once: Program
    passed: tuple[str, ...]
    states: tuple[str, ...]  # lasting variables that every replica writes
    slopes: frozenset[str]  # gradients: the mean over the replicas
    sums: frozenset[
        str
    ]  # those of them that are gradients of parameters, which the replicas add up


def cut(program: Program) -> Halves:
    """Split a program into the part run per replica and the part run once."""
    each, once = program.clone(), program.clone()
    ops = program.global_block().ops
    second = list(run_once(ops))
    once_only = {id(op) for op in second}
    first = [op for op in ops if id(op) not in once_only]
    each.global_block().set_ops(first)
    once.global_block().set_ops(second)
    written = _written(first)
    passed = tuple(n for n in _read_from_outside(second) if n in written)
    block = program.global_block()
    states = tuple(n for n in sorted(written) if n in block.vars and block.vars[n].persistable)
    backward = [op for op in first if op.role & OpRole.Backward]
    sums = {name for op in backward for name in op.role_var[1::2]}
    return Halves(each, once, passed, states, frozenset(_written(backward)), frozenset(sums))


def _written(ops: Sequence[Operator]) -> set[str]:
    return {name for op in ops for name in op.output_arg_names}


def _read_from_outside(ops: Sequence[Operator]) -> list[str]:
    written: set[str] = set()
    found: dict[str, None] = {}
    for op in ops:
        found.update((name, None) for name in op.input_arg_names if name not in written)
        written.update(op.output_arg_names)
    return list(found)


# -- sharing out a batch -----------------------------------------------------------------------
def shares(feed: Any, count: int) -> list[Mapping[str, Any]]:
    """The feed of each replica: a list as given, or a batch split into even parts.

    Given fewer feeds or rows than replicas, the last replicas are idle.

    Raises:
        FeedError: more feeds than replicas, or none.
    """
    if isinstance(feed, list | tuple):
        if not 0 < len(feed) <= count:
            raise FeedError(
                f"{len(feed)} feeds for {count} replicas",
                hint="feed one dict per replica, or one dict to be split among them",
            )
        return list(feed)
    feed = {name: _held(value) for name, value in feed.items()}
    count = max(min((count, *map(_parts, feed.values()))), 1) if feed else count
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in feed.items():
        for part, piece in zip(parts, _pieces(value, count), strict=True):
            part[name] = piece
    return list(parts)


def _held(value: Any) -> Any:
    """A fed value as a LoDTensor if it has a LoD, else as an array."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], np.ndarray):
        return LoDTensor(value[0], lengths_to_lod(value[1]))
    return _bare(value)


def _parts(value: Any) -> int:
    """The number of parts into which a value can be split."""
    if isinstance(value, LoDTensor):
        return len(value.offsets[0]) - 1
    shape = np.shape(value)
    return shape[0] if shape else 1


def _pieces(value: Any, count: int) -> list[Any]:
    if isinstance(value, LoDTensor):
        return _sequences(value, _bounds(_parts(value), count))
    if not isinstance(value, list):  # of numbers, which take the variable's type when they are fed
        value = np.asarray(value)
    return [value[i:j] for i, j in _bounds(len(value), count)] if np.ndim(value) else [value]


def _bounds(rows: int, count: int) -> list[tuple[int, int]]:
    edges = [-(-rows * i // count) for i in range(count + 1)]  # the first parts are larger
    return list(pairwise(edges))


def _sequences(tensor: LoDTensor, bounds: list[tuple[int, int]]) -> list[LoDTensor]:
    pieces = []
    for i, j in bounds:
        offsets = []
        for level in tensor.offsets:
            offsets.append(level[i : j + 1] - level[i])
            i, j = int(level[i]), int(level[j])
        pieces.append(LoDTensor(tensor.array[i:j], to_lod(offsets)))
    return pieces


# -- joining -----------------------------------------------------------------------------------
def joined(values: Sequence[Any], scale: float) -> Any:
    """Join the replicas' values in order: the sum of floating-point arrays, times `scale`."""
    values = [_bare(v) for v in values]
    first = values[0]
    if isinstance(first, LoDTensorArray):
        return LoDTensorArray(_bare(each) for each in first)
    if isinstance(first, SelectedRows):
        xp = namespace_of(first.value)
        rows = xp.concatenate([v.rows for v in values])
        scaled = [v.value * v.value.dtype.type(scale) for v in values]
        return SelectedRows(rows, xp.concatenate(scaled), first.height)
    if getattr(getattr(first, "dtype", None), "kind", "") != "f":
        return first
    factor = first.dtype.type(scale)
    total: Array = first * factor
    for value in values[1:]:
        total += value * factor
    return total


def _bare(value: Any) -> Any:
    return value.array if isinstance(value, LoDTensor) and not value.offsets else value


def _scaled(values: Sequence[Any], scale: float) -> list[Any]:
    """The gradients with respect to each replica's part of the loss."""
    return [
        LoDTensor(joined([v.array], scale), v.offsets)
        if isinstance(v, LoDTensor)
        else joined([v], scale)
        for v in values
    ]


class Replicas:
    """Runs one program as several replicas with shared parameters."""

    def __init__(self, program: Program, count: int, threads: int, build: Build) -> None:
        self.count = count
        self._build = build
        self._program = program
        self._made: Program | None = None
        self._halves: Halves | None = None
        self._pool = ThreadPoolExecutor(threads or count, thread_name_prefix="replica")

    def run(self, execute: Run, feed: Any, fetches: Sequence[str], scope: Scope) -> list[list[Any]]:
        """Run once; returns the values of all replicas for each fetch."""
        halves = self._cut(fetches)
        feeds = shares(feed, self.count)
        own = _written(halves.each.global_block().ops) | {n for f in feeds for n in f}
        wanted = tuple(dict.fromkeys((*halves.passed, *(n for n in fetches if n in own))))
        scopes = [scope, *self._scopes(scope, halves)]
        found = list(
            self._pool.map(
                lambda i: execute(halves.each, feeds[i], wanted, scopes[i], i), range(len(feeds))
            )
        )
        columns = dict(zip(wanted, zip(*found, strict=True), strict=True))
        strategy = self._build.strategy.gradient_scale_strategy
        even = strategy == GradientScaleStrategy.CoeffNumDevice
        scale = 1.0 / len(feeds) if even else 1.0
        given = {name: joined(columns[name], scale) for name in halves.passed}
        last = [name for name in fetches if name not in columns]
        final = dict(zip(last, execute(halves.once, given, last, scope, 0), strict=True))
        final.update((n, joined(columns[n], scale)) for n in halves.sums.intersection(columns))
        shown = {n: _scaled(columns[n], scale) for n in halves.slopes.intersection(columns)}
        shown.update((n, [value] * len(feeds)) for n, value in final.items())
        return [list(shown.get(n, columns.get(n, ()))) for n in fetches]

    def close(self) -> None:
        self._pool.shutdown()

    def _cut(self, fetches: Sequence[str]) -> Halves:
        made = self._build.made(self._program, fetches)
        if self._halves is None or self._made is not made:
            self._halves, self._made = cut(made), made
        return self._halves

    def _scopes(self, scope: Scope, halves: Halves) -> list[Scope]:
        """Scopes of the other replicas: shared parameters, separate running statistics."""
        known: list[Scope] | None = scope.groups.get((id(self), "replicas"))
        if known is None:
            known = [Scope(scope) for _ in range(self.count - 1)]
            scope.groups[id(self), "replicas"] = known
        for kid in known:
            for name in halves.states:
                if name not in kid.local_var_names():
                    cell, outer = kid.var(name), scope.find_var(name)
                    if outer is not None and outer.value is not None:
                        cell.put(np.array(outer.value))
        return known
