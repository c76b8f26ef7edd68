"""softmax over the last dimension: blocks of rows in the cache; NumPy's exp between two loops."""

from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.ops.layer_norm import blocks_of, each

from .loops import compiled, fits

__all__ = ["softmax", "softmax_grad"]


@compiled
def _lowered(x: Array, y: Array) -> None:
    """Each row without its largest. A NaN stays, and makes its row one of NaNs when it is summed.

    Four maxima side by side, as each has to wait for the last one.
    """
    size = x.shape[1]
    for r in range(len(x)):
        a = b = c = d = x[r, 0]
        for i in range(0, size - 3, 4):
            a = x[r, i] if x[r, i] > a else a
            b = x[r, i + 1] if x[r, i + 1] > b else b
            c = x[r, i + 2] if x[r, i + 2] > c else c
            d = x[r, i + 3] if x[r, i + 3] > d else d
        for i in range(size - size % 4, size):
            a = x[r, i] if x[r, i] > a else a
        a, c = a if a > b else b, c if c > d else d
        a = a if a > c else c
        for i in range(size):
            y[r, i] = x[r, i] - a


@compiled
def _divided(y: Array) -> None:
    kind = y.dtype.type
    for r in range(len(y)):
        total = kind(0)
        for c in range(y.shape[1]):
            total += y[r, c]
        share = kind(1) / total
        for c in range(y.shape[1]):
            y[r, c] *= share


@compiled
def _gradient(y: Array, dy: Array, dx: Array) -> None:
    for r in range(len(y)):
        total = y.dtype.type(0)
        for c in range(y.shape[1]):
            total += y[r, c] * dy[r, c]
        for c in range(y.shape[1]):
            dx[r, c] = (dy[r, c] - total) * y[r, c]


def softmax(xp: Any, X: Array, axis: int, out: Array = None) -> Array | None:
    made = np.empty(X.shape, X.dtype) if out is None else out
    if axis not in (-1, X.ndim - 1) or not X.size or not fits(X, made):
        return None
    x, y = X.reshape(-1, X.shape[-1]), made.reshape(-1, X.shape[-1])
    blocks = blocks_of(xp, x)

    def work(i: int) -> None:
        some = y[blocks[i]]
        _lowered(x[blocks[i]], some)
        np.exp(some, out=some)
        _divided(some)

    each(xp, work, len(blocks), 4 * x.size)
    return made


def softmax_grad(xp: Any, Out: Array, dOut: Array, axis: int, out: Array = None) -> Array | None:
    made = np.empty(Out.shape, Out.dtype) if out is None else out
    if axis not in (-1, Out.ndim - 1) or not Out.size or not fits(Out, dOut, made):
        return None
    y, dy, dx = (a.reshape(-1, Out.shape[-1]) for a in (Out, dOut, made))
    lanes.spread(xp, lambda p: _gradient(y[p], dy[p], dx[p]), len(y), 3 * y.size)
    return made
