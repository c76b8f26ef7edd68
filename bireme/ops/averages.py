"""The window of parameter values that `ModelAverage` keeps, in three sums so that old steps can
leave.
"""

from typing import Any

from bireme.arrays.namespaces import Array

from .shapes import each_as
from .table import op

_SUMS = {f"out_sum_{i}": f"in_sum_{i}" for i in (1, 2, 3)}
_COUNTS = {
    f"out_{name}": f"in_{name}"
    for name in ("num_accumulates", "old_num_accumulates", "num_updates")
}
_STATE = {**_SUMS, **_COUNTS}
_SHORT = 16384  # steps that sum_1 takes before it moves into sum_2, for precision


@op(
    "average_accumulates",
    infer=each_as(**_STATE),
    lod=None,
    returns=" ".join(_STATE),
    inplace=_STATE,
)
def average_accumulates(
    xp: Any,
    param: Array,
    in_sum_1: Array,
    in_sum_2: Array,
    in_sum_3: Array,
    in_num_accumulates: Array,
    in_old_num_accumulates: Array,
    in_num_updates: Array,
    average_window: float,
    max_average_window: int,
    min_average_window: int,
) -> tuple[Array, ...]:
    """sum_1 takes every step; a full window moves to sum_3, and the next one begins."""
    updates, count = in_num_updates + 1, in_num_accumulates + 1
    total = in_sum_1 + param
    spill = updates % _SHORT == 0
    long_total = xp.where(spill, in_sum_2 + total, in_sum_2)
    total = xp.where(spill, 0, total)
    window = xp.minimum(max_average_window, (updates * average_window).astype(updates.dtype))
    full = (count >= min_average_window) & (count >= window)
    return (
        xp.where(full, 0, total).astype(in_sum_1.dtype),
        xp.where(full, 0, long_total).astype(in_sum_1.dtype),
        xp.where(full, total + long_total, in_sum_3).astype(in_sum_1.dtype),
        xp.where(full, 0, count),
        xp.where(full, count, in_old_num_accumulates),
        updates,
    )
