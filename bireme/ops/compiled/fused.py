"""The relu of a sum, and its gradient with that of a bias: memory is read once and written once.

Each loop has a form that overwrites its argument, as loops over two names of one memory do not
become vector code.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.ops.layer_norm import blocks_of, each

from .loops import compiled, exact, fits

__all__ = ["fused_elemwise_activation", "fused_elemwise_activation_grad"]


_RELU_OF_SUM = ("relu", "elementwise_add"), ("elementwise_add_grad", "relu_grad")


@exact
def _sum(x: Array, y: Array, out: Array) -> None:
    """relu(x + y); with one row, y is the same for all rows of x."""
    zero = x.dtype.type(0)
    for r in range(len(x)):
        addend = y[r % len(y)]
        for c in range(x.shape[1]):
            value = x[r, c] + addend[c]
            out[r, c] = zero if value < zero else value


@exact
def _sum_into(x: Array, y: Array) -> None:
    zero = x.dtype.type(0)
    for r in range(len(x)):
        addend = y[r % len(y)]
        for c in range(x.shape[1]):
            value = x[r, c] + addend[c]
            x[r, c] = zero if value < zero else value


@compiled
def _passed(y: Array, dy: Array, dx: Array, bias: Array) -> None:
    kind = y.dtype.type
    for r in range(len(y)):
        for c in range(y.shape[1]):
            slope = dy[r, c] * kind(y[r, c] > 0)
            dx[r, c] = slope
            bias[c] += slope


@compiled
def _passed_into(y: Array, dy: Array, bias: Array) -> None:
    kind = y.dtype.type
    for r in range(len(y)):
        for c in range(y.shape[1]):
            slope = dy[r, c] * kind(y[r, c] > 0)
            dy[r, c] = slope
            bias[c] += slope


def fused_elemwise_activation(
    xp: Any,
    X: Array,
    Y: Array,
    functor_list: Any,
    axis: int,
    scale: float,
    bireme_equal: bool | None,
    need: frozenset[str],
    out: Any = None,
) -> tuple[Array, Array] | None:
    made = np.empty(X.shape, X.dtype) if out is None or out[0] is None else out[0]
    plain = tuple(functor_list) in _RELU_OF_SUM and "IntermediateOut" not in need
    if not plain or made.shape != X.shape or not fits(X, Y, made) or not X.size or not X.ndim:
        return None
    if X.shape == Y.shape:
        x, y = (a.reshape(-1, X.shape[-1]) for a in (X, Y))
    elif not bireme_equal and _is_bias(X, Y.shape, axis):
        x, y = X.reshape(-1, Y.size), Y.reshape(1, -1)
    else:
        return None
    whole = made.reshape(x.shape)

    def work(part: slice) -> None:
        own = y[part] if len(y) == len(x) else y
        if made is X:
            _sum_into(x[part], own)
        else:
            _sum(x[part], own, whole[part])

    lanes.spread(xp, work, len(x), 3 * x.size)
    return made, None


def fused_elemwise_activation_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Out: Array,
    dOut: Array,
    functor_list: Any,
    axis: int,
    scale: float,
    need: frozenset[str],
    out: Any = None,
) -> tuple[Array, Array] | None:
    made = np.empty(dOut.shape, dOut.dtype) if out is None or out[0] is None else out[0]
    plain = tuple(functor_list) in _RELU_OF_SUM and (X is None or X.shape == dOut.shape)
    bias = Y is not None and _is_bias(dOut, Y.shape, axis)
    if not plain or not bias or not fits(Out, dOut, Y, made) or not dOut.size:
        return None
    y, dy, dx = (a.reshape(-1, Y.size) for a in (Out, dOut, made))
    blocks = blocks_of(xp, y)
    sums = np.zeros((len(blocks), Y.size), Y.dtype)

    def work(i: int) -> None:
        some = blocks[i]
        if made is dOut:
            _passed_into(y[some], dx[some], sums[i])
        else:
            _passed(y[some], dy[some], dx[some], sums[i])

    each(xp, work, len(blocks), 4 * y.size)
    return made, sums.sum(axis=0).reshape(Y.shape)


def _is_bias(x: Array, shape: Sequence[int], axis: int) -> bool:
    """Whether an operand of a shape is the same for all rows of `x`."""
    at = x.ndim - len(shape)
    return axis in (-1, at) and 0 < len(shape) < x.ndim and x.shape[at:] == tuple(shape)
