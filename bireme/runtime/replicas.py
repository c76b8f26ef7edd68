"""Data parallelism inside one process: replicas of the model on threads, one update.

The program is cut in two: what each replica computes from its share of the batch (forward and
backward), and what is computed once (updates, schedules, communication). Gradients join in the
order of the replicas, weighted by their rows, so the result is that of the whole batch, and
repeats bit for bit.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from bireme.errors import FeedError
from bireme.ir import Operator, OpRole, Program

from .arrays import Array, namespace_of
from .scope import Scope
from .strategies import GradientScaleStrategy
from .values import LoDTensor, SelectedRows, to_lod

__all__ = ["Halves", "Replicas", "cut", "joined", "shares"]

_ONCE = OpRole.Optimize | OpRole.LRSched | OpRole.RPC | OpRole.Dist
Run = Callable[[Program, Mapping[str, Any], Sequence[str], Scope, int], list[Any]]


@dataclass(frozen=True, slots=True)
class Halves:
    """A program cut in two, and the names that pass from the first half to the second."""

    each: Program
    once: Program
    passed: tuple[str, ...]
    states: tuple[str, ...]  # lasting variables that every replica writes


def cut(program: Program) -> Halves:
    """Cut a program between what replicas do and what is done once."""
    each, once = program.clone(), program.clone()
    ops = program.global_block().ops
    first = [op for op in ops if not op.role & _ONCE]
    second = [op for op in ops if op.role & _ONCE]
    each.global_block().set_ops(first)
    once.global_block().set_ops(second)
    written = _written(first)
    passed = tuple(n for n in _read_from_outside(second) if n in written)
    block = program.global_block()
    states = tuple(n for n in sorted(written) if n in block.vars and block.vars[n].persistable)
    return Halves(each, once, passed, states)


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
    """The feed of each replica: a list as it is given, or a batch cut into even parts.

    Raises:
        FeedError: fewer rows than replicas, or another number of feeds.
    """
    if isinstance(feed, list | tuple):
        if len(feed) != count:
            raise FeedError(
                f"{len(feed)} feeds for {count} replicas",
                hint="feed one dict per replica, or one dict that is shared out",
            )
        return list(feed)
    parts: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, value in feed.items():
        for part, piece in zip(parts, _pieces(name, value, count), strict=True):
            part[name] = piece
    return list(parts)


def _pieces(name: str, value: Any, count: int) -> list[Any]:
    if isinstance(value, LoDTensor) and value.offsets:
        return _sequences(value, _bounds(name, len(value.offsets[0]) - 1, count))
    array = np.asarray(value)
    bounds = _bounds(name, len(array) if array.ndim else 0, count)
    return [array[i:j] for i, j in bounds]


def _bounds(name: str, rows: int, count: int) -> list[tuple[int, int]]:
    if rows < count:
        raise FeedError(
            f"'{name}' has {rows} rows or sequences for {count} replicas",
            hint="feed at least one row per replica, or lower CPU_NUM",
        )
    edges = [-(-rows * i // count) for i in range(count + 1)]  # the first ones get more
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


def _rows(feed: Mapping[str, Any]) -> int:
    return max((len(v) for v in feed.values() if hasattr(v, "__len__")), default=1)


# -- joining -----------------------------------------------------------------------------------
def joined(values: Sequence[Any], weights: Sequence[float]) -> Any:
    """One value from the replicas' values, in their order: the weighted sum of floating arrays."""
    values = [v.array if isinstance(v, LoDTensor) and not v.offsets else v for v in values]
    first = values[0]
    if isinstance(first, SelectedRows):
        xp = namespace_of(first.value)
        rows = xp.concatenate([v.rows for v in values])
        scaled = [v.value * v.value.dtype.type(w) for v, w in zip(values, weights, strict=True)]
        return SelectedRows(rows, xp.concatenate(scaled), first.height)
    if getattr(getattr(first, "dtype", None), "kind", "") != "f":
        return first
    total: Array = first * first.dtype.type(weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total += value * value.dtype.type(weight)
    return total


class Replicas:
    """Runs one program as several replicas that share its parameters."""

    def __init__(
        self, program: Program, count: int, threads: int, scale: GradientScaleStrategy
    ) -> None:
        self.count = count
        self._scale = scale
        self._version = -1
        self._program = program
        self._halves: Halves | None = None
        self._pool = ThreadPoolExecutor(threads or count, thread_name_prefix="replica")

    def run(self, execute: Run, feed: Any, fetches: Sequence[str], scope: Scope) -> list[list[Any]]:
        """Run once; for each fetch the values of all replicas."""
        halves = self._cut()
        feeds = shares(feed, self.count)
        own = _written(halves.each.global_block().ops) | {n for f in feeds for n in f}
        wanted = tuple(dict.fromkeys((*halves.passed, *(n for n in fetches if n in own))))
        scopes = [scope, *self._scopes(scope, halves)]
        found = list(
            self._pool.map(
                lambda i: execute(halves.each, feeds[i], wanted, scopes[i], i), range(self.count)
            )
        )
        columns = dict(zip(wanted, zip(*found, strict=True), strict=True))
        weights = self._weights(feeds)
        given = {name: joined(columns[name], weights) for name in halves.passed}
        last = [name for name in fetches if name not in columns]
        final = dict(zip(last, execute(halves.once, given, last, scope, 0), strict=True))
        return [list(columns.get(n, [final.get(n)] * self.count)) for n in fetches]

    def close(self) -> None:
        self._pool.shutdown()

    def _cut(self) -> Halves:
        if self._halves is None or self._version != self._program.version:
            self._halves, self._version = cut(self._program), self._program.version
        return self._halves

    def _weights(self, feeds: Sequence[Mapping[str, Any]]) -> list[float]:
        if self._scale != GradientScaleStrategy.CoeffNumDevice:
            return [1.0] * len(feeds)
        rows = [_rows(feed) for feed in feeds]
        return [n / sum(rows) for n in rows]

    def _scopes(self, scope: Scope, halves: Halves) -> list[Scope]:
        """Scopes of the other replicas: parameters are shared, running statistics are their own."""
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
