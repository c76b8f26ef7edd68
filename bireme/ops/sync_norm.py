"""Batch normalisation over the batches of all ranks, in parts between which sums travel: the sums
of x and of its squares, then y; the sums of dy and of dy times the normalised x, then dx. What the
pass `sync_batch_norm` writes.

Sums are float64 [2 C + 1], with the number of elements per channel last, so that ranks may have
batches of different sizes and variances keep their digits.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.ir import VarType

from .batch_norm import running
from .planes import planes, unplanes
from .table import Infer, no_gradient, op

_STATES = {"Scale": "", "Bias": "", "Mean": "", "Variance": ""}
_SAVED = {"SavedMean": "", "SavedVariance": ""}
_LAYOUT = {"data_layout": "NCHW"}


def _sums_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    channels = x.shape[-1] if ctx.attr("data_layout") == "NHWC" else x.shape[1]
    ctx.set("Sums", (2 * channels + 1,), VarType.FP64, lod_level=0)


def _packed(xp: Any, first: Array, second: Array, count: int) -> Array:
    number = xp.asarray([count], dtype=xp.float64)
    return xp.concatenate([first, second, number])


def _means(sums: Array) -> tuple[Array, Array, Array]:
    """Both sums divided by the number of elements, and that number."""
    channels = len(sums) // 2
    return sums[:channels] / sums[-1], sums[channels:-1] / sums[-1], sums[-1]


@op(
    "bireme_batch_norm_sums", infer=_sums_rule, grad=no_gradient, lod=None,
    ins={"X": ""}, outs={"Sums": ""}, attrs=_LAYOUT,
)  # fmt: skip
def batch_norm_sums(xp: Any, X: Array, data_layout: str) -> Array:
    x = planes(X, data_layout).astype(xp.float64)
    count = x.shape[0] * x.shape[2]
    return _packed(xp, x.sum(axis=(0, 2)), (x * x).sum(axis=(0, 2)), count)


def _norm_rule(ctx: Infer) -> None:
    ctx.set("Y", like=ctx.x("X"))
    scale = ctx.x("Scale")
    for slot in ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance"):
        ctx.set(slot, scale.shape, scale.dtype, lod_level=0)


@op(
    "bireme_batch_norm_of_sums", infer=_norm_rule, grad=no_gradient,
    returns="Y MeanOut VarianceOut SavedMean SavedVariance",
    ins={"X": "", "Sums": "", **_STATES},
    outs={"Y": "", "MeanOut": "", "VarianceOut": "", **_SAVED},
    attrs={"epsilon": 1e-5, "momentum": 0.9, **_LAYOUT},
)  # fmt: skip
def batch_norm_of_sums(
    xp: Any,
    X: Array,
    Sums: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
    data_layout: str,
) -> tuple[Array, ...]:
    """The outputs of batch_norm, with mean and variance from sums over all ranks."""
    kind = X.dtype
    mean, square, _ = _means(Sums)
    variance = xp.maximum(square - mean * mean, 0)
    inverse = (1 / xp.sqrt(variance + epsilon)).astype(kind)
    mean, variance = mean.astype(kind), variance.astype(kind)
    x, gain = planes(X, data_layout), Scale * inverse
    y = x * gain[:, None] + (Bias - mean * gain)[:, None]
    states = running(Mean, Variance, mean, variance, None, momentum)
    return unplanes(xp, y, X.shape, data_layout), *states, mean, inverse


@op(
    "bireme_batch_norm_grad_sums", infer=_sums_rule, lod=None,
    returns="Sums Scale@GRAD Bias@GRAD",
    ins={"X": "", **_SAVED, "Y@GRAD": ""},
    outs={"Sums": "", "Scale@GRAD": "", "Bias@GRAD": ""},
    attrs=_LAYOUT,
)  # fmt: skip
def batch_norm_grad_sums(
    xp: Any, X: Array, SavedMean: Array, SavedVariance: Array, dY: Array, data_layout: str
) -> tuple[Array, Array, Array]:
    """The gradients of scale and bias are those of this rank's batch."""
    x, dy = planes(X, data_layout), planes(dY, data_layout).astype(xp.float64)
    normal = (x - SavedMean[:, None]) * SavedVariance[:, None]
    bias, scale = dy.sum(axis=(0, 2)), (dy * normal).sum(axis=(0, 2))
    sums = _packed(xp, bias, scale, x.shape[0] * x.shape[2])
    return sums, scale.astype(X.dtype), bias.astype(X.dtype)


def _grad_rule(ctx: Infer) -> None:
    ctx.set("X@GRAD", like=ctx.x("X"))


@op(
    "bireme_batch_norm_grad_of_sums", infer=_grad_rule,
    ins={"X": "", "Sums": "", "Scale": "", **_SAVED, "Y@GRAD": ""},
    outs={"X@GRAD": ""},
    attrs=_LAYOUT,
)  # fmt: skip
def batch_norm_grad_of_sums(
    xp: Any,
    X: Array,
    Sums: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    data_layout: str,
) -> Array:
    """gain (dy - mean dy - x^ mean(dy x^)), with means over all ranks."""
    kind = X.dtype
    bias, scale, _ = _means(Sums)
    x, dy = planes(X, data_layout), planes(dY, data_layout)
    normal = (x - SavedMean[:, None]) * SavedVariance[:, None]
    inner = dy - bias.astype(kind)[:, None] - normal * scale.astype(kind)[:, None]
    dx = inner * (Scale * SavedVariance)[:, None]
    return unplanes(xp, dx, X.shape, data_layout)
