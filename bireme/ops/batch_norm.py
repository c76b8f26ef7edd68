"""batch_norm, after Ioffe and Szegedy, arXiv 1502.03167.

The work is a matter of memory: channels go block by block through a shared cache, and blocks are
shared out among the cores. Where a channel's mean is small beside its deviation, its variance and
its gradient come from plain sums of products; elsewhere the mean is taken off first, as
cancellation would cost digits.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator

from .planes import Channels, planes, unplanes
from .table import ROWS, GradOp, Infer, OpSpec, op

_WORTH = 3 << 20  # bytes of an array; smaller ones are one block
_BLOCK = 4 << 20
_STEADY = 4.0  # mean squared over variance; beyond it more than two bits would cancel


def batch_norm_shape(ctx: Infer) -> None:
    x, scale = ctx.x(), ctx.x("Scale")
    channels = x.shape[-1] if ctx.attr("data_layout") == "NHWC" else x.shape[1]
    if channels >= 0 and scale.shape not in ((channels,), (-1,)):
        raise InvalidArgument(f"{channels} channels but a scale of shape {list(scale.shape)}")
    ctx.set("Y", like=x)
    for slot in ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance"):
        ctx.set(slot, scale.shape, scale.dtype, lod_level=0)


_BATCH_NORM_GRAD = GradOp(
    uses=("X", "Scale", "Bias", "SavedMean", "SavedVariance", "Mean", "Variance"),
    wrt=("X", "Scale", "Bias"),
    of=("Y",),
)


# -- blocks of channels ------------------------------------------------------------------------
def _blocks(xp: Any, x: Array) -> list[slice]:
    """The channels of [N, C, rest] in equal blocks that stay in a shared cache from the first pass
    to the last; an even number of them, for the lanes.
    """
    if xp is not np or x.nbytes < _WORTH:
        return [slice(0, x.shape[1])]
    return lanes.cut(x.shape[1], 2 * -(-x.nbytes // (2 * _BLOCK)))


def _steady(mean: Array, variance: Array) -> bool:
    return bool((mean * mean <= variance * variance.dtype.type(_STEADY)).all())


def _moments(xp: Any, x: Array, with_: Channels, room: Array) -> tuple[Array, Array]:
    """Mean and variance of each channel."""
    count = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
    mean = with_.sum(x) / count
    if xp is np:  # asking a device what it found would stop it
        variance = with_.along(x, x) / count - mean * mean
        if _steady(mean, variance):
            return mean, variance
    xp.subtract(x, mean[:, None], out=room)
    return mean, with_.along(room, room) / count


def _affine(xp: Any, x: Array, gain: Array, shift: Array, with_: Channels, out: Array) -> None:
    xp.multiply(x, with_.wide(gain), out=out)
    out += with_.wide(shift)


# -- kernels -----------------------------------------------------------------------------------
@op(
    "batch_norm",
    infer=batch_norm_shape,
    grad=_BATCH_NORM_GRAD,
    returns="Y MeanOut VarianceOut SavedMean SavedVariance",
    inplace={"MeanOut": "Mean", "VarianceOut": "Variance"},
    compiled="batch_norm",
)
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
) -> tuple[Array, ...]:
    """SavedVariance holds 1 / sqrt(variance + eps)."""
    fixed = use_global_stats or (is_test and not trainable_statistics)
    states = (Scale, Bias, Mean, Variance, MomentumTensor)
    return normalised(xp, X, states, epsilon, momentum, fixed, data_layout)


def normalised(
    xp: Any,
    X: Array,
    states: tuple[Array, ...],
    epsilon: float,
    momentum: float,
    fixed: bool,
    data_layout: str,
    then: Callable[[slice, Array], None] | None = None,
) -> tuple[Array, ...]:
    """Batch normalisation; `then` changes the result of some channels [N, C, rest] while they are
    in the cache.
    """
    Scale, Bias, Mean, Variance, MomentumTensor = states
    x = planes(X, data_layout)
    y = xp.empty_like(x)
    mean, variance = (Mean, Variance) if fixed else (xp.empty_like(Mean), xp.empty_like(Variance))
    inverse = xp.empty_like(variance)

    def work(c: slice) -> None:
        with_ = Channels(xp, x[:, c])
        if not fixed:
            mean[c], variance[c] = _moments(xp, x[:, c], with_, y[:, c])
        inverse[c] = 1 / xp.sqrt(variance[c] + x.dtype.type(epsilon))
        gain = Scale[c] * inverse[c]
        _affine(xp, x[:, c], gain, Bias[c] - mean[c] * gain, with_, y[:, c])
        if then is not None:
            then(c, y[:, c])

    lanes.share(work, _blocks(xp, x))
    y = unplanes(xp, y, X.shape, data_layout)
    if fixed:
        return y, Mean, Variance, mean, inverse
    return y, *running(Mean, Variance, mean, variance, MomentumTensor, momentum), mean, inverse


def running(
    old_mean: Array,
    old_variance: Array,
    mean: Array,
    variance: Array,
    tensor: Array,
    momentum: float,
) -> tuple[Array, Array]:
    """The running statistics after a batch with these; a momentum tensor goes before the number."""
    keep = mean.dtype.type(momentum if tensor is None else tensor.reshape(-1)[0])
    return old_mean * keep + mean * (1 - keep), old_variance * keep + variance * (1 - keep)


@op("batch_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD", compiled="batch_norm")
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
) -> tuple[Array, Array, Array]:
    mean, inverse = SavedMean, SavedVariance
    if use_global_stats and Mean is not None:
        mean, inverse = Mean, 1 / xp.sqrt(Variance + X.dtype.type(epsilon))
    fixed, wanted = use_global_stats or is_test, "X@GRAD" in need
    return normalised_gradient(xp, X, dY, (Scale, mean, inverse), fixed, wanted, data_layout)


def normalised_gradient(
    xp: Any,
    X: Array,
    dY: Array,
    states: tuple[Array, Array, Array],
    fixed: bool,
    wanted: bool,
    data_layout: str,
    first: Callable[[slice, Array], Array] | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of X (if `wanted`), scale and bias; `first` gives the gradient of some channels
    [N, C, rest] from dY.
    """
    Scale, mean, inverse = states
    x, dy = planes(X, data_layout), planes(dY, data_layout)
    dx = xp.empty_like(dy) if wanted else None
    scale, bias = xp.empty_like(Scale), xp.empty_like(Scale)

    def work(c: slice) -> None:
        channel = (Scale[c], mean[c], inverse[c])
        out = None if dx is None else dx[:, c]
        with_ = Channels(xp, x[:, c])
        given = dy[:, c] if first is None else first(c, dy[:, c])
        scale[c], bias[c] = _gradient(xp, x[:, c], given, channel, with_, out, fixed)

    lanes.share(work, _blocks(xp, x))
    return None if dx is None else unplanes(xp, dx, X.shape, data_layout), scale, bias


def _gradient(
    xp: Any,
    x: Array,
    dy: Array,
    channel: tuple[Array, Array, Array],
    with_: Channels,
    out: Array,
    fixed: bool,
) -> tuple[Array, Array]:
    """The gradients of scale and bias of some channels; that of x into `out`."""
    scale, mean, inverse = channel
    if xp is not np or not _steady(mean, 1 / (inverse * inverse)):
        x, mean = x - mean[:, None], xp.zeros_like(mean)
    bias = with_.sum(dy)
    along = (with_.along(x, dy) - mean * bias) * inverse
    if out is not None and fixed:
        xp.multiply(dy, with_.wide(scale * inverse), out=out)
    elif out is not None:  # scale * inverse * (dy - bias / n - (x - mean) * inverse * along / n)
        count = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
        slope = inverse * along / count
        _affine(xp, x, -slope, slope * mean - bias / count, with_, out)
        out += dy
        out *= with_.wide(scale * inverse)
    return along, bias


def _batch_norm_rule(op_: Operator, block: Block) -> list[OpSpec]:
    """The gradient reads the running statistics only where the forward pass used them."""
    (spec,) = _BATCH_NORM_GRAD(op_, block)
    if op_.attrs.get("use_global_stats"):
        return [spec]
    kept = {s: n for s, n in spec.inputs.items() if s not in ("Mean", "Variance")}
    return [spec._replace(inputs=kept)]


ROWS["batch_norm"].grad = _batch_norm_rule
