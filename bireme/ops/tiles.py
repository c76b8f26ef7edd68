"""How kernels walk over large arrays: in pieces that stay in the cache, in lanes; and how selected
rows become unique.

Both hide what differs between the host and a device from the kernels; neither knows an operator.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bireme.runtime import lanes
from bireme.runtime.arrays import Array
from bireme.runtime.values import SelectedRows

_LARGE = 1 << 18  # elements: smaller arrays are not worth a thread's waking up
_CACHED = 1 << 18  # elements of all arrays of a rule that stay in the cache together
TILE = 1 << 15  # elements: seven float32 arrays of this size and what is computed fit a cache


def tiles(xp: Any, *arrays: Array) -> Iterator[Sequence[Array]]:
    """Matching pieces of arrays of one shape; the whole arrays where pieces do not pay.

    A rule that reads and writes piece by piece may write over its inputs.
    """
    size = arrays[0].size
    if xp is not np or size < 2 * TILE or not all(a.flags.c_contiguous for a in arrays):
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    for start in range(0, size, TILE):
        yield [a[start : start + TILE] for a in flat]


def walk(xp: Any, rule: Callable[..., object], *arrays: Array) -> None:
    """Call `rule` with matching pieces of arrays of one shape, see `tiles`, in lanes."""
    size = arrays[0].size
    if xp is not np or size < 2 * TILE or not all(a.flags.c_contiguous for a in arrays):
        rule(*arrays)
        return
    flat = [a.reshape(-1) for a in arrays]

    step = _CACHED // len(arrays)

    def work(part: slice) -> None:
        for start in range(part.start, part.stop, step):
            stop = min(start + step, part.stop)
            rule(*(a[start:stop] for a in flat))

    lanes.spread(xp, work, size, len(arrays) * size, 1)


def applied(xp: Any, function: Any, x: Array, y: Any, out: Array = None) -> Array:
    """A binary universal function of x and of an array like it or a number, in lanes where x is
    large.
    """
    if xp is not np or x.size < _LARGE or not _alike(x, y):
        return function(x, y, out=out)
    if out is None or not out.flags.c_contiguous:
        out = np.empty(x.shape, dtype=x.dtype)
    a, b, c = x.reshape(-1), y.reshape(-1) if isinstance(y, np.ndarray) else None, out.reshape(-1)

    def work(part: slice) -> None:
        function(a[part], y if b is None else b[part], out=c[part])

    lanes.spread(xp, work, x.size, 3 * x.size)
    return out


def _alike(x: Array, y: Any) -> bool:
    if isinstance(y, int | float):
        return bool(x.flags.c_contiguous)
    if not isinstance(y, np.ndarray):
        return False
    same = x.shape == y.shape and x.dtype == y.dtype
    return same and bool(x.flags.c_contiguous and y.flags.c_contiguous)


def targets(xp: Any, out: Any, *like: Array) -> tuple[Array, ...]:
    """Buffers to write to: those offered in `out`, new ones for the rest."""
    offered = (None,) * len(like) if out is None else out if isinstance(out, tuple) else (out,)
    return tuple(xp.empty_like(a) if o is None else o for o, a in zip(offered, like, strict=True))


def copied(xp: Any, out: Any, *sources: Array) -> tuple[Array, ...]:
    """The same as `targets`, holding the values of `sources`."""
    buffers = targets(xp, out, *sources)
    for buffer, source in zip(buffers, sources, strict=True):
        if buffer is not source:
            buffer[...] = source
    return buffers


def merge_rows(xp: Any, rows: Array, value: Array) -> tuple[Array, Array]:
    """Each row once, in rising order; values of equal rows added, always in the same order."""
    if xp is not np:
        return _merge_pairs(xp, rows, value)
    order = rows.argsort(kind="stable")
    rows = rows[order]
    again = (rows[1:] == rows[:-1]).nonzero()[0] + 1
    if not len(again):
        return rows, value[order]
    kept = np.ones(len(rows), dtype=bool)
    kept[again] = False
    starts = kept.nonzero()[0]
    total = value[order[starts]]
    width = value[0].size  # adding single numbers is several times faster than adding rows
    place = (np.searchsorted(starts, again) - 1)[:, None] * width + np.arange(width)
    np.add.at(total.reshape(-1), place.reshape(-1), value[order[again]].reshape(-1))
    return rows[starts], total


def _merge_pairs(xp: Any, rows: Array, value: Array) -> tuple[Array, Array]:
    """Add neighbours of equal row until none are left: no atomics, so the same bits every time."""
    order = xp.argsort(rows, kind="stable")
    rows, value = rows[order], value[order]
    while True:
        begins = xp.concatenate((xp.ones(1, dtype=bool), rows[1:] != rows[:-1]))
        if bool(begins.all()):
            return rows, value
        segment = xp.cumsum(begins) - 1
        odd = (xp.arange(len(rows)) - xp.flatnonzero(begins)[segment]) % 2 == 1
        even = ~odd
        kept = value[even]
        kept[(xp.cumsum(even) - 1)[odd]] += value[odd]
        rows, value = rows[even], kept


def unique_rows(xp: Any, grad: SelectedRows) -> tuple[Array, Array]:
    """`merge_rows` of selected rows."""
    if not len(grad.rows):
        return grad.rows, grad.value
    return merge_rows(xp, grad.rows, grad.value)


def merged(xp: Any, grad: SelectedRows) -> SelectedRows:
    """Each row once, as Fluid merges: rising where rows repeat, else in the order of the batch."""
    rows, value = unique_rows(xp, grad)
    return grad if len(rows) == len(grad.rows) else SelectedRows(rows, value, grad.height)


def dense(xp: Any, grad: SelectedRows, like: Array) -> Array:
    """Selected rows as a whole array; rows that are not selected are zero."""
    whole = xp.zeros(like.shape, dtype=grad.value.dtype)
    rows, value = unique_rows(xp, grad)
    whole[rows] = value.reshape(len(rows), *like.shape[1:])
    return whole


def searched(xp: Any, grad: SelectedRows) -> SelectedRows:
    """What Fluid's momentum and RMSProp see of a gradient.

    They look every row of the table up in the gradient's rows by bisection. Rows that repeat are
    merged first, which sorts them; rows that do not stay in the order of the batch, and bisection
    misses some. Those learn nothing in this step: known, and kept, since every curve recorded
    with Fluid shows it.
    """
    rows = grad.rows
    unique = xp.unique(rows)
    if len(unique) < len(rows) or bool((unique == rows).all()):
        return grad
    low, high = xp.zeros_like(rows), xp.full_like(rows, len(rows) - 1)
    found = xp.zeros(len(rows), dtype=bool)
    while bool((low <= high).any()):
        middle = xp.clip((low + high) // 2, 0, len(rows) - 1)
        seen, open_ = rows[middle], (low <= high) & ~found
        found |= open_ & (seen == rows)
        low = xp.where(open_ & (seen < rows), middle + 1, low)
        high = xp.where(open_ & (seen > rows), middle - 1, xp.where(found, low - 1, high))
    return SelectedRows(rows[found], grad.value[found], grad.height)
