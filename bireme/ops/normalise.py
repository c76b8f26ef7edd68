"""Normalisations of groups of channels, and of instances.

Both share one core: rows with a mean and a variance, written y = (x - mean) / sqrt(variance
+ eps).
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .planes import per_channel, unplanes
from .planes import planes as planes_of
from .shapes import product
from .table import GradOp, Infer, op


# -- rows with a mean and a variance -----------------------------------------------------------
def _standardised(xp: Any, rows: Array, epsilon: float) -> tuple[Array, Array, Array, Array]:
    """(x - mean) / std of each row, mean, variance, 1 / std."""
    mean = rows.mean(axis=1, dtype=rows.dtype)
    centred = rows - mean[:, None]
    variance = xp.einsum("rc,rc->r", centred, centred) / rows.dtype.type(max(rows.shape[1], 1))
    inverse = 1 / xp.sqrt(variance + rows.dtype.type(epsilon))
    centred *= inverse[:, None]
    return centred, mean, variance, inverse


def _row_gradient(xp: Any, normal: Array, dy: Array, inverse: Array) -> Array:
    """The gradient of x, from the normalised rows, the gradient at them, and 1 / std."""
    count = normal.dtype.type(max(normal.shape[1], 1))
    along = xp.einsum("rc,rc->r", dy, normal) / count
    dx = dy - (dy.sum(axis=1) / count)[:, None]
    dx -= normal * along[:, None]
    dx *= inverse[:, None]
    return dx


# -- groups and instances ----------------------------------------------------------------------
def _group_norm_shape(ctx: Infer) -> None:
    x, groups = ctx.x(), ctx.attr("groups")
    channels = x.shape[-1] if ctx.op.attrs.get("data_layout") == "NHWC" else x.shape[1]
    if groups < 1 or (channels >= 0 and channels % groups):
        raise InvalidArgument(f"{channels} channels cannot be cut into {groups} groups")
    ctx.set("Y", like=x)
    for slot in ("Mean", "Variance"):
        ctx.set(slot, (x.shape[0], groups), x.dtype, lod_level=0)


def _affine(y: Array, scale: Array, bias: Array) -> Array:
    """y [N, C, rest] times scale plus bias, both per channel and optional; in place."""
    if scale is not None:
        y *= scale[:, None]
    if bias is not None:
        y += bias[:, None]
    return y


@op(
    "group_norm",
    infer=_group_norm_shape,
    grad=GradOp(uses=("Scale", "Bias", "Y", "Variance"), wrt=("X", "Scale", "Bias"), of=("Y",)),
    returns="Y Mean Variance",
)
def group_norm(
    xp: Any, X: Array, Scale: Array, Bias: Array, groups: int, epsilon: float, data_layout: str
) -> tuple[Array, Array, Array]:
    """Wu and He, arXiv 1803.08494."""
    planes = planes_of(X, data_layout)
    rows = planes.reshape(len(X) * groups, -1)
    y, mean, variance, _ = _standardised(xp, rows, epsilon)
    y = _affine(y.reshape(planes.shape), Scale, Bias)
    shape = (len(X), groups)
    return (
        unplanes(xp, y, X.shape, data_layout),
        mean.reshape(shape),
        variance.reshape(shape),
    )


@op("group_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
def group_norm_grad(
    xp: Any,
    Scale: Array,
    Bias: Array,
    Y: Array,
    Variance: Array,
    dY: Array,
    groups: int,
    epsilon: float,
    data_layout: str,
) -> tuple[Array, Array, Array]:
    """The normalised values are won back from Y, as the operator has no X: a scale of 0 has no
    gradient.
    """
    normal, dy = planes_of(Y, data_layout), planes_of(dY, data_layout)
    bias = None if Bias is None else dy.sum(axis=(0, 2))
    if Bias is not None:
        normal = normal - Bias[:, None]
    scale = None
    if Scale is not None:
        safe = xp.where(Scale == 0, xp.ones_like(Scale), Scale)
        normal = normal / safe[:, None]
        scale = per_channel(xp, dy, normal)
        dy = dy * Scale[:, None]
    inverse = 1 / xp.sqrt(Variance.reshape(-1) + Y.dtype.type(epsilon))
    shape = (len(Y) * groups, -1)
    dx = _row_gradient(xp, normal.reshape(shape), dy.reshape(shape), inverse)
    return unplanes(xp, dx.reshape(dy.shape), Y.shape, data_layout), scale, bias


def _instance_norm_shape(ctx: Infer) -> None:
    x = ctx.x()
    ctx.set("Y", like=x)
    for slot in ("SavedMean", "SavedVariance"):
        ctx.set(slot, (product(x.shape[:2]),), x.dtype, lod_level=0)


@op(
    "instance_norm",
    infer=_instance_norm_shape,
    grad=GradOp(
        uses=("X", "Scale", "SavedMean", "SavedVariance"), wrt=("X", "Scale", "Bias"), of=("Y",)
    ),
    returns="Y SavedMean SavedVariance",
)
def instance_norm(
    xp: Any, X: Array, Scale: Array, Bias: Array, epsilon: float
) -> tuple[Array, Array, Array]:
    """Ulyanov, Vedaldi and Lempitsky, arXiv 1607.08022; SavedVariance holds 1 / std."""
    planes = X.reshape(*X.shape[:2], -1)
    y, mean, _, inverse = _standardised(xp, planes.reshape(-1, planes.shape[2]), epsilon)
    return _affine(y.reshape(planes.shape), Scale, Bias).reshape(X.shape), mean, inverse


@op("instance_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
def instance_norm_grad(
    xp: Any, X: Array, Scale: Array, SavedMean: Array, SavedVariance: Array, dY: Array
) -> tuple[Array, Array, Array]:
    planes, dy = X.reshape(*X.shape[:2], -1), dY.reshape(*X.shape[:2], -1)
    rows = planes.reshape(-1, planes.shape[2])
    normal = (rows - SavedMean[:, None]) * SavedVariance[:, None]
    bias = dy.sum(axis=(0, 2))
    scale = per_channel(xp, dy, normal.reshape(planes.shape))
    if Scale is not None:
        dy = dy * Scale[:, None]
    dx = _row_gradient(xp, normal, dy.reshape(rows.shape), SavedVariance)
    return dx.reshape(X.shape), scale, bias
