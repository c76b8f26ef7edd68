"""Batch normalisation with the relu that follows it, and with a sum between the two: a block of
channels is normalised, summed and cut off while it is in the cache. What the passes
`fuse_bn_act` and `fuse_bn_add_act` write.
"""

from collections.abc import Callable
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .batch_norm import batch_norm_shape, normalised, normalised_gradient
from .planes import planes, unplanes
from .table import GradOp, Infer, op

_INS = {"X": "", "Scale": "", "Bias": "", "Mean": "", "Variance": ""}
_OUTS = {
    "Y": "", "MeanOut": "", "VarianceOut": "", "SavedMean": "~", "SavedVariance": "~",
    "ReserveSpace": "?~",
}  # fmt: skip
_ATTRS = {"epsilon": 1e-5, "momentum": 0.9, "act_type": "relu", "data_layout": "NCHW"}
_RETURNS = "Y MeanOut VarianceOut SavedMean SavedVariance"
_INPLACE = {"MeanOut": "Mean", "VarianceOut": "Variance"}
_SAVED = ("X", "Scale", "Bias", "SavedMean", "SavedVariance", "Y")


def _rule(ctx: Infer) -> None:
    if ctx.attr("act_type") != "relu":
        raise InvalidArgument(
            f"batch normalisation fused with {ctx.attr('act_type')}", hint="only relu is fused"
        )
    batch_norm_shape(ctx)


@op(
    "fused_batch_norm_act",
    infer=_rule,
    grad=GradOp(uses=_SAVED, wrt=("X", "Scale", "Bias"), of=("Y",)),
    returns=_RETURNS,
    inplace=_INPLACE,
    compiled="fused_norm",
    ins=_INS,
    outs=_OUTS,
    attrs=_ATTRS,
)
def fused_batch_norm_act(
    xp: Any,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
    data_layout: str,
) -> tuple[Array, ...]:
    """relu(batch_norm(X)) in training; the outputs are those of batch_norm."""
    states = (Scale, Bias, Mean, Variance, None)

    def cut(c: slice, y: Array) -> None:
        xp.maximum(y, 0, out=y)

    return normalised(xp, X, states, epsilon, momentum, False, data_layout, cut)


@op(
    "fused_batch_norm_act_grad",
    returns="X@GRAD Scale@GRAD Bias@GRAD",
    compiled="fused_norm",
)
def fused_batch_norm_act_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    data_layout: str,
    need: frozenset[str],
) -> tuple[Array, Array, Array]:
    states = (Scale, SavedMean, SavedVariance)
    first = _masked(xp, planes(Y, data_layout))
    return normalised_gradient(xp, X, dY, states, False, "X@GRAD" in need, data_layout, first)


@op(
    "fused_bn_add_activation",
    infer=_rule,
    grad=GradOp(uses=_SAVED, wrt=("X", "Z", "Scale", "Bias"), of=("Y",)),
    returns=_RETURNS,
    inplace=_INPLACE,
    compiled="fused_norm",
    ins={"X": "", "Z": "", **_INS},
    outs=_OUTS,
    attrs=_ATTRS,
)
def fused_bn_add_activation(
    xp: Any,
    X: Array,
    Z: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
    data_layout: str,
) -> tuple[Array, ...]:
    """relu(batch_norm(X) + Z) in training."""
    z, states = addend(X, Z, data_layout), (Scale, Bias, Mean, Variance, None)

    def cut(c: slice, y: Array) -> None:
        y += z[:, c]
        xp.maximum(y, 0, out=y)

    return normalised(xp, X, states, epsilon, momentum, False, data_layout, cut)


def addend(x: Array, z: Array, layout: str) -> Array:
    """Z as [N, C, rest].

    Raises:
        InvalidArgument: it has not the shape of X.
    """
    if z.shape != x.shape:
        raise InvalidArgument(
            f"a sum of shapes {list(x.shape)} and {list(z.shape)}, which are declared alike",
            hint="BuildStrategy.fuse_bn_add_act_ops = False",
        )
    return planes(z, layout)


@op(
    "fused_bn_add_activation_grad",
    returns="X@GRAD Z@GRAD Scale@GRAD Bias@GRAD",
    compiled="fused_norm",
)
def fused_bn_add_activation_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    data_layout: str,
    need: frozenset[str],
) -> tuple[Array, ...]:
    states = (Scale, SavedMean, SavedVariance)
    y = planes(Y, data_layout)
    dz = xp.empty_like(y)

    def first(c: slice, dy: Array) -> Array:
        return xp.multiply(dy, y[:, c] > 0, out=dz[:, c])

    made = normalised_gradient(xp, X, dY, states, False, "X@GRAD" in need, data_layout, first)
    return made[0], unplanes(xp, dz, X.shape, data_layout), *made[1:]


def _masked(xp: Any, y: Array) -> Callable[[slice, Array], Array]:
    """The gradient through relu, from its output."""
    return lambda c, dy: dy * (y[:, c] > 0)
