"""batch_norm, a channel at a time: it is read once from memory, and written once."""

from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.ops.batch_norm import running

from .loops import compiled, fits

__all__ = ["backward", "batch_norm", "batch_norm_grad", "forward"]


@compiled
def _forward(
    x: Array,
    scale: Array,
    bias: Array,
    epsilon: float,
    y: Array,
    mean: Array,
    variance: Array,
    inverse: Array,
    start: int,
    stop: int,
    relu: bool,
    z: Array,
    adds: bool,
) -> None:
    """With z added, and relu applied, as far as asked for. Sums are taken in the dtype along a
    plane, and in float64 over planes.
    """
    n, _, rest = x.shape
    kind = x.dtype.type
    count = max(n * rest, 1)
    for c in range(start, stop):
        total = 0.0
        for i in range(n):
            s = kind(0)
            for j in range(rest):
                s += x[i, c, j]
            total += s
        middle = kind(total / count)
        total = 0.0
        for i in range(n):
            s = kind(0)
            for j in range(rest):
                d = x[i, c, j] - middle
                s += d * d
            total += s
        mean[c] = middle
        variance[c] = kind(total / count)
        inverse[c] = kind(1 / np.sqrt(total / count + epsilon))
        gain = scale[c] * inverse[c]
        shift = bias[c]
        for i in range(n):
            for j in range(rest):
                value = (x[i, c, j] - middle) * gain + shift
                if adds:
                    value += z[i, c, j]
                if relu and value < 0:
                    value = kind(0)
                y[i, c, j] = value


@compiled
def _backward(
    x: Array,
    dy: Array,
    scale: Array,
    mean: Array,
    inverse: Array,
    dx: Array,
    dscale: Array,
    dbias: Array,
    start: int,
    stop: int,
    y: Array,
    relu: bool,
    dz: Array,
    keeps: bool,
) -> None:
    """dx = gain (dy - bias' / n - (x - mean) inverse scale' / n), with its two sums first.

    dz is dy through the relu, if it is asked for.
    """
    n, _, rest = x.shape
    kind = x.dtype.type
    count = max(n * rest, 1)
    for c in range(start, stop):
        middle = mean[c]
        total, along = 0.0, 0.0
        for i in range(n):
            s, t = kind(0), kind(0)
            for j in range(rest):
                g = dy[i, c, j]
                if relu and not y[i, c, j] > 0:
                    g = kind(0)
                if keeps:
                    dz[i, c, j] = g
                s += g
                t += g * (x[i, c, j] - middle)
            total += s
            along += t
        along *= inverse[c]
        dbias[c] = kind(total)
        dscale[c] = kind(along)
        gain = scale[c] * inverse[c]
        slope = kind(along * inverse[c] / count)
        share = kind(total / count)
        for i in range(n):
            for j in range(rest):
                g = dy[i, c, j]
                if relu and not y[i, c, j] > 0:
                    g = kind(0)
                dx[i, c, j] = gain * (g - share - (x[i, c, j] - middle) * slope)


def batch_norm(
    xp: Any,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    MomentumTensor: Array,
    epsilon: float,
    momentum: float,
    is_test: bool,
    use_global_stats: bool,
    trainable_statistics: bool,
    data_layout: str,
) -> tuple[Array, ...] | None:
    fixed = use_global_stats or (is_test and not trainable_statistics)
    if fixed or data_layout == "NHWC" or not fits(X, Scale, Bias):
        return None
    return forward(xp, X, (Scale, Bias, Mean, Variance, MomentumTensor), epsilon, momentum)


def forward(
    xp: Any,
    X: Array,
    states: tuple[Array, ...],
    epsilon: float,
    momentum: float,
    relu: bool = False,
    Z: Array = None,
) -> tuple[Array, ...]:
    """The outputs of batch_norm in training, channels first; with Z added to the first, and relu
    applied to it.
    """
    Scale, Bias, Mean, Variance, MomentumTensor = states
    x = X.reshape(len(X), X.shape[1], -1)
    y, z = np.empty_like(x), x if Z is None else Z.reshape(x.shape)
    mean, variance, inverse = (np.empty_like(Scale) for _ in range(3))

    def work(part: slice) -> None:
        channel = (mean, variance, inverse, part.start, part.stop)
        _forward(x, Scale, Bias, epsilon, y, *channel, relu, z, Z is not None)

    lanes.spread(xp, work, x.shape[1], 4 * x.size)
    outs = running(Mean, Variance, mean, variance, MomentumTensor, momentum)
    return y.reshape(X.shape), *outs, mean, inverse


def batch_norm_grad(
    xp: Any,
    X: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    Mean: Array,
    Variance: Array,
    dY: Array,
    epsilon: float,
    is_test: bool,
    use_global_stats: bool,
    data_layout: str,
    need: frozenset[str],
) -> tuple[Array, Array, Array] | None:
    plain = not (is_test or use_global_stats) and "X@GRAD" in need and data_layout != "NHWC"
    if not plain or not fits(X, dY, Scale, SavedMean, SavedVariance):
        return None
    return backward(xp, X, dY, (Scale, SavedMean, SavedVariance))


def backward(
    xp: Any,
    X: Array,
    dY: Array,
    states: tuple[Array, Array, Array],
    relu: Array = None,
    dZ: Array = None,
) -> tuple[Array, Array, Array]:
    """The gradients of X, scale and bias; `relu` is the output of a relu that dY is of. dZ, if it
    is given, receives dY through the relu.
    """
    Scale, SavedMean, SavedVariance = states
    x = X.reshape(len(X), X.shape[1], -1)
    dy, dx = dY.reshape(x.shape), np.empty_like(x)
    y = dy if relu is None else relu.reshape(x.shape)
    dz = dx if dZ is None else dZ.reshape(x.shape)
    dscale, dbias = np.empty_like(Scale), np.empty_like(Scale)

    def work(part: slice) -> None:
        sums = (dscale, dbias, part.start, part.stop)
        _backward(
            x,
            dy,
            Scale,
            SavedMean,
            SavedVariance,
            dx,
            *sums,
            y,
            relu is not None,
            dz,
            dZ is not None,
        )

    lanes.spread(xp, work, x.shape[1], 6 * x.size)
    return dx.reshape(X.shape), dscale, dbias
