"""Max pooling that halves both sides, the commonest kind, a window at a time and without masks."""

from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.ops.pooling import geometry_of

from .loops import compiled, fits

__all__ = ["pool2d", "pool2d_grad"]


@compiled
def _largest(x: Array, y: Array) -> None:
    """x and y [planes, height, width]; a NaN in a window is its largest."""
    for i in range(len(y)):
        for r in range(y.shape[1]):
            for c in range(y.shape[2]):
                upper = _larger(x[i, 2 * r, 2 * c], x[i, 2 * r, 2 * c + 1])
                lower = _larger(x[i, 2 * r + 1, 2 * c], x[i, 2 * r + 1, 2 * c + 1])
                y[i, r, c] = _larger(upper, lower)


@compiled
def _larger(a: Array, b: Array) -> Array:
    return a if (a >= b) | (a != a) else b


@compiled
def _spread_largest(x: Array, y: Array, dy: Array, dx: Array) -> None:
    """The first element of a window that equals its largest gets the gradient."""
    if x.shape[1] % 2 or x.shape[2] % 2:
        dx[:] = 0
    kind = x.dtype.type
    for i in range(len(y)):
        for r in range(y.shape[1]):
            for c in range(y.shape[2]):
                best, g = y[i, r, c], dy[i, r, c]
                first = x[i, 2 * r, 2 * c] == best
                second = (x[i, 2 * r, 2 * c + 1] == best) & ~first
                third = (x[i, 2 * r + 1, 2 * c] == best) & ~(first | second)
                fourth = (x[i, 2 * r + 1, 2 * c + 1] == best) & ~(first | second | third)
                dx[i, 2 * r, 2 * c] = g * kind(first)
                dx[i, 2 * r, 2 * c + 1] = g * kind(second)
                dx[i, 2 * r + 1, 2 * c] = g * kind(third)
                dx[i, 2 * r + 1, 2 * c + 1] = g * kind(fourth)


def pool2d(
    xp: Any,
    X: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    pooling_type: str,
    exclusive: bool,
    adaptive: bool,
    global_pooling: bool,
    ceil_mode: bool,
    padding_algorithm: str,
    data_format: str,
) -> Array | None:
    plain = pooling_type == "max" and not adaptive and data_format != "NHWC"
    shape = (ksize, strides, paddings, global_pooling, ceil_mode, padding_algorithm)
    if not plain or not fits(X) or not _is_halving(X, *shape):
        return None
    x = X.reshape(-1, *X.shape[2:])
    y = np.empty((len(x), x.shape[1] // 2, x.shape[2] // 2), dtype=X.dtype)
    lanes.spread(xp, lambda part: _largest(x[part], y[part]), len(x), 2 * x.size)
    return y.reshape(*X.shape[:2], *y.shape[1:])


def pool2d_grad(
    xp: Any,
    X: Array,
    Out: Array,
    dOut: Array,
    ksize: Any,
    strides: Any,
    paddings: Any,
    pooling_type: str,
    exclusive: bool,
    adaptive: bool,
    global_pooling: bool,
    ceil_mode: bool,
    padding_algorithm: str,
    data_format: str,
) -> Array | None:
    plain = pooling_type == "max" and not adaptive and data_format != "NHWC"
    shape = (ksize, strides, paddings, global_pooling, ceil_mode, padding_algorithm)
    if not plain or not fits(X, Out, dOut) or not _is_halving(X, *shape):
        return None
    x = X.reshape(-1, *X.shape[2:])
    y, dy = (a.reshape(-1, *a.shape[2:]) for a in (Out, dOut))
    dx = np.empty_like(x)

    def work(part: slice) -> None:
        _spread_largest(x[part], y[part], dy[part], dx[part])

    lanes.spread(xp, work, len(x), 4 * x.size)
    return dx.reshape(X.shape)


def _is_halving(
    x: Array, ksize: Any, strides: Any, paddings: Any, whole: bool, ceil: bool, algorithm: str
) -> bool:
    """Whether windows are two by two, side by side, inside of the array."""
    geo = geometry_of(x, ksize, strides, paddings, whole, algorithm)
    two = geo.kernel == geo.strides == (2, 2) and not any(map(any, geo.pads))
    return two and geo.out(x.shape[2:], ceil) == (x.shape[2] // 2, x.shape[3] // 2)
