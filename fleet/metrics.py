"""Metrics of a whole job: what every trainer has counted, put together in one call.

    area = metrics.auc(stat_pos, stat_neg)      # the counters of layers.auc: variables, or names

Every trainer calls the same function between two steps and gets the same number. The counters meet
at a parameter server, or in a collective group; a process by itself is a job of one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bireme import distributed
from bireme.arrays.namespaces import Array, to_host
from bireme.collective import Group
from bireme.errors import InvalidArgument
from bireme.ir import Variable
from bireme.metrics import Auc, area
from bireme.runtime.scope import Scope, global_scope
from bireme.trainer.allgather import allgather
from bireme.trainer.registry import trainers

__all__ = ["acc", "auc", "connected", "gather", "mae", "max", "min", "mse", "rmse", "sum"]

_RINGS = "@COMMUNICATORS@"


# -- the job -----------------------------------------------------------------------------------
def gather(
    arrays: Mapping[str, Any],
    scope: Scope | None = None,
    group: Group | None = None,
    trainer: int | None = None,
) -> dict[str, Array]:
    """For each name the arrays of all trainers, stacked in their order.

    Values are arrays, numbers, variables, or names of variables in `scope` (the global one). It
    meets in `group` where there is one, else in the ring of an all-reduce program, at the servers,
    or in the group of `bireme.distributed`; a process that is several trainers says which
    `trainer` is meant.
    """
    scope = scope or global_scope()
    mine = {name: np.ascontiguousarray(_array(value, scope)) for name, value in arrays.items()}
    if group is not None:
        return _in_group(mine, group)
    rings = scope.find_var(_RINGS)
    if rings is not None and rings.value is not None and rings.value.rings:
        return _in_ring(mine, rings.value.ring(0))
    if trainer is not None or trainers.numbers:
        return allgather(mine, trainer)
    if distributed.is_initialized():
        return _in_world(mine, distributed)
    return {name: array[None] for name, array in mine.items()}


def connected(scope: Scope | None = None) -> bool:
    """Whether training has connected this trainer with the others: by rings, or by servers."""
    rings = (scope or global_scope()).find_var(_RINGS)
    return bool(rings is not None and rings.value and rings.value.rings) or bool(trainers.numbers)


def _in_group(mine: Mapping[str, Array], group: Group) -> dict[str, Array]:
    found = {}
    for name, array in mine.items():
        found[name] = np.empty((group.size, *array.shape), array.dtype)
        group.all_gather(found[name], array)
    return found


def _in_world(mine: Mapping[str, Array], distributed: Any) -> dict[str, Array]:
    found = {}
    for name, array in mine.items():
        parts = [np.empty_like(array) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, array)
        found[name] = np.stack(parts)
    return found


def _in_ring(mine: Mapping[str, Array], ring: Any) -> dict[str, Array]:
    found: dict[str, Array] = {}
    ring.run(lambda: found.update(_in_group(mine, ring.group)))
    return found


def _array(value: Any, scope: Scope) -> Array:
    if isinstance(value, Variable | str):
        name = value if isinstance(value, str) else value.name
        cell = scope.find_var(name)
        if cell is None or cell.value is None:
            raise InvalidArgument(
                f"metric: variable {name!r} holds nothing",
                hint="run the startup program and a step in this scope, or hand over scope=",
            )
        value = cell.value
    return to_host(value) if hasattr(value, "shape") else np.asarray(value)


# -- sums --------------------------------------------------------------------------------------
def sum(input: Any, scope: Scope | None = None, **where: Any) -> Array:
    """The sum over all trainers, element by element."""
    return gather({"x": input}, scope, **where)["x"].sum(axis=0)


def max(input: Any, scope: Scope | None = None, **where: Any) -> Array:
    """The largest value of all trainers, element by element."""
    return gather({"x": input}, scope, **where)["x"].max(axis=0)


def min(input: Any, scope: Scope | None = None, **where: Any) -> Array:
    """The smallest value of all trainers, element by element."""
    return gather({"x": input}, scope, **where)["x"].min(axis=0)


def _ratio(over: Any, under: Any, scope: Scope | None, where: Mapping[str, Any]) -> float:
    found = gather({"over": over, "under": under}, scope, **where)
    total = float(found["under"].sum())
    return float(found["over"].sum()) / total if total else 0.0


# -- metrics -----------------------------------------------------------------------------------
def auc(stat_pos: Any, stat_neg: Any = None, scope: Scope | None = None, **where: Any) -> float:
    """The area under the ROC curve of what all trainers have seen.

    Args:
        stat_pos: the counter of positives by score of `layers.auc`, or a `metrics.Auc`.
        stat_neg: the counter of negatives.
        scope: where the counters are, if not in the global scope.
        where: `group` or `trainer`, see `gather`.
    """
    if isinstance(stat_pos, Auc):
        stat_pos, stat_neg = stat_pos.stat_pos, stat_pos.stat_neg
    found = gather({"pos": stat_pos, "neg": stat_neg}, scope, **where)
    pos, neg = (found[name].sum(axis=0).reshape(-1) for name in ("pos", "neg"))
    return area(pos, neg)


def acc(correct: Any, total: Any, scope: Scope | None = None, **where: Any) -> float:
    """The share of what was right, of all trainers."""
    return _ratio(correct, total, scope, where)


def mae(abserr: Any, total_ins_num: Any, scope: Scope | None = None, **where: Any) -> float:
    """The mean absolute error, from its sum and the number of samples on each trainer."""
    return _ratio(abserr, total_ins_num, scope, where)


def mse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, **where: Any) -> float:
    """The mean squared error, from its sum and the number of samples on each trainer."""
    return _ratio(sqrerr, total_ins_num, scope, where)


def rmse(sqrerr: Any, total_ins_num: Any, scope: Scope | None = None, **where: Any) -> float:
    """The root of the mean squared error of all trainers."""
    return float(np.sqrt(mse(sqrerr, total_ins_num, scope, **where)))
