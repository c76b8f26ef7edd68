"""Products of large matrices, their pieces shared out among the host's cores.

Pieces follow from shapes, not from the number of cores, so that every machine finds the same bits.
On a device, and for small matrices, they are the namespace's own products.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from . import onednn

__all__ = ["dot", "dots", "matmul"]

_WORTH = 1 << 24  # multiplications: a fifth of a millisecond
_PIECE = 1 << 27  # of a large product; each piece copies a factor once more, a few percent
_MOST = 8


def dot(xp: Any, a: Array, b: Array, out: Array = None) -> Array:
    """The product of two matrices, into `out` where it is offered."""
    if xp is not np:
        return xp.dot(a, b, out=out)
    cost = a.size * b.shape[1]
    if cost < onednn.LEAST:
        return np.dot(a, b) if out is None else np.matmul(a, b, out=out)
    if cost < _WORTH:
        return onednn.dot(a, b, out)
    (found,) = dots(xp, (a, b, out))
    return found


def dots(xp: Any, *triples: tuple[Array, Array, Array]) -> list[Array]:
    """The products of several pairs (a, b, out), their pieces side by side."""
    if xp is not np or sum([a.size * b.shape[1] for a, b, _ in triples]) < _WORTH:
        return [dot(xp, a, b, out) for a, b, out in triples]
    results, jobs = [], list[Callable[[], object]]()
    for a, b, out in triples:
        if out is None:
            out = np.empty((len(a), b.shape[1]), dtype=np.result_type(a, b))
        jobs += _pieces(a, b, out)
        results.append(out)
    lanes.run(jobs)
    return results


def matmul(xp: Any, a: Array, b: Array, out: Array = None) -> Array:
    """The product of two matrices, or of stacks of them."""
    if xp is not np:
        return xp.matmul(a, b, out=out)
    cost = a.size * b.shape[-1]
    if cost < _WORTH:
        return onednn.matmul(a, b, out)
    if set(a.shape[:-2] + b.shape[:-2]) <= {1}:  # stacks of one
        flat = None if out is None else out.reshape(out.shape[-2:])
        found = dot(xp, a.reshape(a.shape[-2:]), b.reshape(b.shape[-2:]), flat)
        return found.reshape((1,) * (max(a.ndim, b.ndim) - 2) + found.shape) if out is None else out
    if a.ndim != b.ndim or len(a) != len(b):
        return onednn.matmul(a, b, out)
    if out is None:
        shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = np.empty((*shape, a.shape[-2], b.shape[-1]), dtype=np.result_type(a, b))
    lanes.spread(xp, lambda part: onednn.matmul(a[part], b[part], out[part]), len(a), cost)
    return out


def _pieces(a: Array, b: Array, out: Array) -> list[Callable[[], object]]:
    """Jobs that each fill some columns of `out`, or some rows where there are many more of those:
    BLAS copies what is not cut once per piece, and copies `b` more slowly.
    """
    rows, columns = out.shape
    cost = a.size * columns
    count = 1 if cost < _WORTH else min(_MOST, 2 * max(1, round(cost / (2 * _PIECE))))
    if rows > 2 * columns:
        parts = lanes.cut(rows, count)
        return [partial(onednn.dot, a[part], b, out[part]) for part in parts]
    parts = lanes.cut(columns, count)
    return [partial(onednn.dot, a, b[:, part], out[:, part]) for part in parts]
