"""batch_norm, after Ioffe and Szegedy, arXiv 1502.03167.

The work is a matter of memory: channels go block by block through the cache, and blocks are shared
out among the cores. Where a channel's mean is small beside its deviation, its variance and its
gradient come from plain sums of products; elsewhere the mean is taken off first, as cancellation
would cost digits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator
from bireme.runtime import lanes
from bireme.runtime.arrays import Array, block_bytes

from .planes import per_channel, planes, unplanes
from .table import ROWS, GradOp, Infer, OpSpec, op

_STEADY = 4.0  # mean squared over variance; beyond it more than two bits would cancel


def _batch_norm_shape(ctx: Infer) -> None:
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
def _blocks(xp: Any, x: Array, part: slice) -> Iterator[slice]:
    """A part of the channels of [N, C, rest] in blocks that stay in the cache from the first pass
    to the last.
    """
    most = max(1, block_bytes(xp) // max(1, 2 * x[:, :1].size * x.itemsize))
    size = part.stop - part.start
    blocks = -(-size // most)
    for i in range(blocks):
        yield slice(part.start + size * i // blocks, part.start + size * (i + 1) // blocks)


def _sums(xp: Any, x: Array) -> Array:
    """The sum over everything but the channel."""
    return xp.einsum("nch->nc", x).sum(axis=0)


def _steady(mean: Array, variance: Array) -> bool:
    return bool((mean * mean <= variance * variance.dtype.type(_STEADY)).all())


def _moments(xp: Any, x: Array, room: Array) -> tuple[Array, Array]:
    """Mean and variance of each channel."""
    count = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
    mean = _sums(xp, x) / count
    if xp is np:  # asking a device what it found would stop it
        variance = per_channel(xp, x, x) / count - mean * mean
        if _steady(mean, variance):
            return mean, variance
    xp.subtract(x, mean[:, None], out=room)
    return mean, per_channel(xp, room, room) / count


def _wide(xp: Any, channel: Array, x: Array) -> Array:
    """A number per channel as something that multiplies x [N, C, rest].

    On the host it is written out as planes, which all samples share: a loop over whole planes costs
    a third of one loop per plane.
    """
    if xp is not np or x.strides[-1] != x.itemsize:
        return channel[:, None]
    return np.broadcast_to(channel[:, None], x.shape[1:]).copy()


def _affine(xp: Any, x: Array, gain: Array, shift: Array, out: Array) -> None:
    xp.multiply(x, _wide(xp, gain, x), out=out)
    out += _wide(xp, shift, x)


# -- kernels -----------------------------------------------------------------------------------
@op(
    "batch_norm",
    infer=_batch_norm_shape,
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
    x = planes(X, data_layout)
    fixed = use_global_stats or (is_test and not trainable_statistics)
    y = xp.empty_like(x)
    mean, variance = (Mean, Variance) if fixed else (xp.empty_like(Mean), xp.empty_like(Variance))
    inverse = xp.empty_like(variance)

    def work(part: slice) -> None:
        for c in _blocks(xp, x, part):
            if not fixed:
                mean[c], variance[c] = _moments(xp, x[:, c], y[:, c])
            inverse[c] = 1 / xp.sqrt(variance[c] + x.dtype.type(epsilon))
            gain = Scale[c] * inverse[c]
            _affine(xp, x[:, c], gain, Bias[c] - mean[c] * gain, y[:, c])

    lanes.spread(xp, work, x.shape[1], 4 * x.size, 1)
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
    x, dy = planes(X, data_layout), planes(dY, data_layout)
    mean, inverse = SavedMean, SavedVariance
    if use_global_stats and Mean is not None:
        mean, inverse = Mean, 1 / xp.sqrt(Variance + x.dtype.type(epsilon))
    fixed = use_global_stats or is_test
    dx = xp.empty_like(dy) if "X@GRAD" in need else None
    scale, bias = xp.empty_like(Scale), xp.empty_like(Scale)

    def work(part: slice) -> None:
        for c in _blocks(xp, x, part):
            found = _gradient(
                xp,
                x[:, c],
                dy[:, c],
                (Scale[c], mean[c], inverse[c]),
                None if dx is None else dx[:, c],
                fixed,
            )
            scale[c], bias[c] = found

    lanes.spread(xp, work, x.shape[1], 6 * x.size, 1)
    return None if dx is None else unplanes(xp, dx, X.shape, data_layout), scale, bias


def _gradient(
    xp: Any, x: Array, dy: Array, channel: tuple[Array, Array, Array], out: Array, fixed: bool
) -> tuple[Array, Array]:
    """The gradients of scale and bias of some channels; that of x into `out`."""
    scale, mean, inverse = channel
    if xp is not np or not _steady(mean, 1 / (inverse * inverse)):
        x, mean = x - mean[:, None], xp.zeros_like(mean)
    bias = _sums(xp, dy)
    along = (per_channel(xp, x, dy) - mean * bias) * inverse
    gain = scale * inverse
    if out is not None and fixed:
        xp.multiply(dy, gain[:, None], out=out)
    elif out is not None:  # gain * (dy - bias / n - (x - mean) * inverse * along / n)
        count = x.dtype.type(max(x.shape[0] * x.shape[2], 1))
        slope = gain * inverse * along / count
        _affine(xp, dy, gain, slope * mean - gain * bias / count, out)
        out -= x * _wide(xp, slope, x)
    return along, bias


def _batch_norm_rule(op_: Operator, block: Block) -> list[OpSpec]:
    """The gradient reads the running statistics only where the forward pass used them."""
    (spec,) = _BATCH_NORM_GRAD(op_, block)
    if op_.attrs.get("use_global_stats"):
        return [spec]
    kept = {s: n for s, n in spec.inputs.items() if s not in ("Mean", "Variance")}
    return [spec._replace(inputs=kept)]


ROWS["batch_norm"].grad = _batch_norm_rule
