"""Batch normalisation with an activation whose input the gradient computes from its output."""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .batch_norm import batch_norm_shape, normalised, normalised_gradient
from .table import GradOp, op


def _activated(xp: Any, z: Array, name: str, alpha: float) -> Array:
    if name in ("", "identity"):
        return z
    a = z.dtype.type(alpha)
    if name == "leaky_relu":
        return xp.where(z >= 0, z, a * z)
    if name == "elu":
        return xp.where(z >= 0, z, a * xp.expm1(xp.minimum(z, 0)))
    raise InvalidArgument(
        f"inplace_abn: activation {name!r}", hint="one of identity, leaky_relu, elu"
    )


def _undone(xp: Any, y: Array, name: str, alpha: float) -> tuple[Array, Array]:
    """What was activated, and the slope of the activation there."""
    a = y.dtype.type(alpha)
    if name in ("", "identity"):
        return y, y.dtype.type(1)
    if name == "leaky_relu":
        return xp.where(y >= 0, y, y / a), xp.where(y >= 0, y.dtype.type(1), a)
    return xp.where(y >= 0, y, xp.log1p(xp.minimum(y, 0) / a)), xp.where(y >= 0, 1, y + a)


@op(
    "inplace_abn",
    infer=batch_norm_shape,
    grad=GradOp(
        uses=("Y", "Scale", "Bias", "SavedMean", "SavedVariance"),
        wrt=("X", "Scale", "Bias"),
        of=("Y",),
    ),
    returns="Y MeanOut VarianceOut SavedMean SavedVariance",
    inplace={"MeanOut": "Mean", "VarianceOut": "Variance"},
)
def inplace_abn(
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
    activation: str,
    alpha: float,
) -> tuple[Array, ...]:
    """In-place activated batch normalisation, arXiv 1712.02616."""
    fixed = use_global_stats or (is_test and not trainable_statistics)
    states = (Scale, Bias, Mean, Variance, MomentumTensor)
    y, *rest = normalised(xp, X, states, epsilon, momentum, fixed, data_layout)
    return (_activated(xp, y, activation, alpha), *rest)


@op("inplace_abn_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
def inplace_abn_grad(
    xp: Any,
    Y: Array,
    Scale: Array,
    Bias: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    is_test: bool,
    use_global_stats: bool,
    data_layout: str,
    activation: str,
    alpha: float,
    need: frozenset[str],
) -> tuple[Array, Array, Array]:
    """The input comes back from the output; SavedVariance holds 1 / sqrt(variance + eps)."""
    z, slope = _undone(xp, Y, activation, alpha)
    wide = (-1,) if data_layout == "NHWC" else (1, -1, *(1,) * (Y.ndim - 2))
    scale, bias, mean, inverse = (a.reshape(wide) for a in (Scale, Bias, SavedMean, SavedVariance))
    x = (z - bias) / (scale * inverse) + mean
    states, fixed = (Scale, SavedMean, SavedVariance), use_global_stats or is_test
    wanted = "X@GRAD" in need
    return normalised_gradient(xp, x, dY * slope, states, fixed, wanted, data_layout)
