"""layer_norm, a row at a time: it is read once from memory, and written once."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ops.layer_norm import blocks_of, each, folded, summed

from .loops import compiled, fits

__all__ = ["layer_norm", "layer_norm_grad"]


@compiled
def _forward(
    x: Array,
    scale: Array,
    bias: Array,
    epsilon: float,
    y: Array,
    mean: Array,
    variance: Array,
) -> None:
    rows, size = x.shape
    kind = x.dtype.type
    for r in range(rows):
        total = kind(0)
        for c in range(size):
            total += x[r, c]
        middle = kind(total / size)
        total = kind(0)
        for c in range(size):
            d = x[r, c] - middle
            total += d * d
        mean[r], variance[r] = middle, kind(total / size)
        inverse = kind(1 / np.sqrt(total / size + epsilon))
        for c in range(size):
            y[r, c] = (x[r, c] - middle) * inverse * scale[c] + bias[c]


@compiled
def _backward(
    x: Array,
    dy: Array,
    gain: Array,
    mean: Array,
    variance: Array,
    epsilon: float,
    dx: Array,
    scale: Array,
    bias: Array,
) -> None:
    rows, size = x.shape
    kind = x.dtype.type
    for r in range(rows):
        middle, inverse = mean[r], kind(1 / np.sqrt(variance[r] + epsilon))
        total, along = kind(0), kind(0)
        for c in range(size):
            g, normal = dy[r, c], (x[r, c] - middle) * inverse
            bias[c] += g
            scale[c] += g * normal
            total += g * gain[c]
            along += g * gain[c] * normal
        share, slope = kind(total / size), kind(along / size)
        for c in range(size):
            normal = (x[r, c] - middle) * inverse
            dx[r, c] = (dy[r, c] * gain[c] - share - normal * slope) * inverse


def layer_norm(
    xp: Any, X: Array, Scale: Array, Bias: Array, begin_norm_axis: int, epsilon: float
) -> tuple[Array, Array, Array] | None:
    rows = folded(X, begin_norm_axis)
    gain, shift = _vector(Scale, rows, 1), _vector(Bias, rows, 0)
    if not fits(rows, gain, shift):
        return None
    y = np.empty_like(rows)
    mean, variance = np.empty(len(rows), rows.dtype), np.empty(len(rows), rows.dtype)
    blocks = blocks_of(xp, rows)

    def work(i: int) -> None:
        some = blocks[i]
        _forward(rows[some], gain, shift, epsilon, y[some], mean[some], variance[some])

    each(xp, work, len(blocks), 3 * rows.size)
    return y.reshape(X.shape), mean, variance


def layer_norm_grad(
    xp: Any,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    dY: Array,
    begin_norm_axis: int,
    epsilon: float,
) -> tuple[Array, Array, Array] | None:
    rows, dy = folded(X, begin_norm_axis), folded(dY, begin_norm_axis)
    gain, mean, variance = _vector(Scale, rows, 1), Mean.reshape(-1), Variance.reshape(-1)
    if not fits(rows, dy, gain, mean, variance):
        return None
    dx, blocks = np.empty_like(rows), blocks_of(xp, rows)
    scales, biases = (np.zeros((len(blocks), rows.shape[1]), rows.dtype) for _ in range(2))

    def work(i: int) -> None:
        some = blocks[i]
        given = rows[some], dy[some], gain, mean[some], variance[some], epsilon
        _backward(*given, dx[some], scales[i], biases[i])

    each(xp, work, len(blocks), 4 * rows.size)
    return dx.reshape(X.shape), summed(scales, Scale), summed(biases, Bias)


def _vector(given: Array, rows: Array, otherwise: float) -> Array:
    """A number per column."""
    if given is None:
        return np.full(rows.shape[1], otherwise, rows.dtype)
    return given.reshape(-1)
