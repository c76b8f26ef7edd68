"""How kernels walk over large arrays: in pieces that stay in the cache, in lanes.

It hides what differs between the host and a device from the kernels, and knows no operator.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

# Elements of a block. A rule's arrays, and what it computes, nearly fit a core's own cache. Smaller
# blocks are so many that lanes wait for each other between their calls.
_BLOCK = 1 << 17
_SUMMED, _PARTS = 1 << 19, 8  # elements of a part of a sum at least; parts at most
_CALLS = 4  # of NumPy in a rule, of which each should be long
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

    def work(part: slice) -> None:
        for start in range(part.start, part.stop, _BLOCK):
            stop = min(start + _BLOCK, part.stop)
            rule(*(a[start:stop] for a in flat))

    lanes.spread(xp, work, size, len(arrays) * size // _CALLS)


def applied(xp: Any, function: Any, x: Array, y: Any, out: Array = None) -> Array:
    """A binary universal function of x and of an array like it, of one that is the same for all its
    rows, or of a number, in lanes where x is large.
    """
    if xp is not np or x.size < TILE:
        return function(x, y, out=out)
    if not _alike(x, y):
        return _by_rows(function, x, y, out) if _for_all_rows(x, y) else function(x, y, out=out)
    if out is None or not out.flags.c_contiguous:
        out = np.empty(x.shape, dtype=x.dtype)
    a, b, c = x.reshape(-1), y.reshape(-1) if isinstance(y, np.ndarray) else None, out.reshape(-1)

    def work(part: slice) -> None:
        function(a[part], y if b is None else b[part], out=c[part])

    lanes.spread(xp, work, x.size, 3 * x.size)
    return out


def _by_rows(function: Any, x: Array, y: Array, out: Array) -> Array:
    found = np.empty(x.shape, dtype=x.dtype) if out is None else out

    def work(part: slice) -> None:
        function(x[part], y, out=found[part])

    lanes.spread(np, work, len(x), 3 * x.size)
    return found


def _for_all_rows(x: Array, y: Any) -> bool:
    """Whether `y` is spread over the rows of `x`."""
    if not isinstance(y, np.ndarray) or x.ndim < 2 or y.ndim > x.ndim or x.dtype != y.dtype:
        return False
    first = y.ndim < x.ndim or y.shape[0] == 1
    pairs = zip(x.shape[::-1], y.shape[::-1], strict=False)
    return first and all(n in (1, m) for m, n in pairs)


def total(xp: Any, x: Array) -> Array:
    """The sum of all elements; of a large array in parts, which follow from its size alone. That
    infinities add up to no number is no fault: dynamic scales of losses look for it.
    """
    with np.errstate(invalid="ignore"):
        return _total(xp, x)


def _total(xp: Any, x: Array) -> Array:
    if xp is not np or x.size < 2 * _SUMMED or not x.flags.c_contiguous:
        return x.sum(dtype=x.dtype)
    flat, parts = x.reshape(-1), lanes.cut(x.size, min(_PARTS, x.size // _SUMMED))
    sums = np.empty(len(parts), x.dtype)

    def add(i: int) -> None:
        with np.errstate(invalid="ignore"):  # each thread has its own
            np.add.reduce(flat[parts[i]], dtype=x.dtype, out=sums[i : i + 1].reshape(()))

    lanes.run([partial(add, i) for i in range(len(parts))])
    return sums.sum(dtype=x.dtype)


def fill(xp: Any, out: Array, value: Array) -> Array:
    """Write a value that has as many dimensions as `out`, or one element, into all of `out`."""
    if xp is np and value.size == 1 and out.flags.c_contiguous:
        flat, number = out.reshape(-1), value.reshape(-1)
    else:
        flat, number = out, value
    if xp is not np or not flat.ndim or number.ndim != flat.ndim:
        flat[...] = number
        return out

    def write(part: slice) -> None:
        flat[part] = number if len(number) == 1 else number[part]

    lanes.spread(xp, write, len(flat), 2 * out.size)
    return out


def _alike(x: Array, y: Any) -> bool:
    if isinstance(y, int | float):
        return bool(x.flags.c_contiguous)
    if not isinstance(y, np.ndarray):
        return False
    same = x.shape == y.shape and x.dtype == y.dtype
    return same and bool(x.flags.c_contiguous and y.flags.c_contiguous)


def complement(decay: Any, like: Array) -> Any:
    """1 - decay, computed in the dtype of `like`, as Fluid computes it.

    The weights of a moving average have to add to one in the numbers that are used: in float32,
    1 - 0.999 is 1.3e-5 less than 0.001, and so is 1 minus the power of 0.999 that Adam divides by.

    >>> complement(0.999, np.zeros(1, np.float32))
    0.0009999871253967285
    """
    if not isinstance(decay, float):
        return 1 - decay
    kind = np.result_type(like.dtype, np.float32).type
    return float(kind(1) - kind(decay))


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
