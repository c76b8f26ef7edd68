"""Normalisations: over the batch, a layer, groups, an instance, neighbouring channels, or running
summaries.

All of them share one core: rows with a mean and a variance, written y = (x - mean) / sqrt(variance
+ eps).
"""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator
from bireme.runtime.arrays import Array, block_bytes

from .shapes import product
from .table import ROWS, GradOp, Infer, OpSpec, op


# -- batch_norm --------------------------------------------------------------------------------
def _planes(x: Array, layout: str) -> Array:
    """[N, C, rest] of an array of either layout; for channels last a transposed view."""
    if layout == "NHWC" and x.ndim > 2:
        return x.reshape(len(x), -1, x.shape[-1]).transpose(0, 2, 1)
    return x.reshape(len(x), x.shape[1], -1)


def _unplanes(xp: Any, planes: Array, shape: Sequence[int], layout: str) -> Array:
    if layout == "NHWC" and len(shape) > 2:
        return xp.ascontiguousarray(planes.transpose(0, 2, 1)).reshape(shape)
    return planes.reshape(shape)


def _per_channel(xp: Any, a: Array, b: Array) -> Array:
    """The sum of a * b over everything but the channel."""
    return xp.einsum("nch,nch->nc", a, b).sum(axis=0)


def _channel_blocks(xp: Any, x: Array) -> list[slice]:
    """Channels of [N, C, rest] in blocks that stay in the cache from the first pass to the last."""
    count = max(1, block_bytes(xp) // max(1, 2 * x[:, :1].size * x.itemsize))
    return [slice(i, min(i + count, x.shape[1])) for i in range(0, x.shape[1], count)]


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


@op(
    "batch_norm",
    infer=_batch_norm_shape,
    grad=_BATCH_NORM_GRAD,
    returns="Y MeanOut VarianceOut SavedMean SavedVariance",
    inplace={"MeanOut": "Mean", "VarianceOut": "Variance"},
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
    """Ioffe and Szegedy, arXiv 1502.03167; SavedVariance holds 1 / sqrt(variance + eps)."""
    x = _planes(X, data_layout)
    fixed = use_global_stats or (is_test and not trainable_statistics)
    mean, inverse = Mean, 1 / xp.sqrt(Variance + Variance.dtype.type(epsilon))
    if fixed:
        y = x * (Scale * inverse)[:, None]
        y += (Bias - mean * Scale * inverse)[:, None]
        return _unplanes(xp, y, X.shape, data_layout), Mean, Variance, mean, inverse
    y, mean, variance = xp.empty_like(x), xp.empty_like(Mean), xp.empty_like(Variance)
    inverse = xp.empty_like(variance)
    for c in _channel_blocks(xp, x):
        part, out = x[:, c], y[:, c]
        part.mean(axis=(0, 2), dtype=x.dtype, out=mean[c])
        xp.subtract(part, mean[c, None], out=out)
        variance[c] = _per_channel(xp, out, out) / x.dtype.type(max(part[:, 0].size, 1))
        inverse[c] = 1 / xp.sqrt(variance[c] + x.dtype.type(epsilon))
        out *= (Scale[c] * inverse[c])[:, None]
        out += Bias[c, None]
    keep = Mean.dtype.type(momentum if MomentumTensor is None else MomentumTensor.reshape(-1)[0])
    mean_out = Mean * keep + mean * (1 - keep)
    variance_out = Variance * keep + variance * (1 - keep)
    return _unplanes(xp, y, X.shape, data_layout), mean_out, variance_out, mean, inverse


@op("batch_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
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
    x, dy = _planes(X, data_layout), _planes(dY, data_layout)
    mean, inverse = SavedMean, SavedVariance
    if use_global_stats and Mean is not None:
        mean, inverse = Mean, 1 / xp.sqrt(Variance + x.dtype.type(epsilon))
    dx = xp.empty_like(dy) if "X@GRAD" in need else None
    bias, scale = xp.empty_like(Scale), xp.empty_like(Scale)
    for c in _channel_blocks(xp, x):
        centred = x[:, c] - mean[c, None]
        dy[:, c].sum(axis=(0, 2), dtype=dy.dtype, out=bias[c])
        scale[c] = _per_channel(xp, dy[:, c], centred) * inverse[c]
        if dx is None:
            continue
        gain = Scale[c] * inverse[c]
        out = xp.multiply(dy[:, c], gain[:, None], out=dx[:, c])
        if not (use_global_stats or is_test):
            count = x.dtype.type(x.shape[0] * x.shape[2])
            centred *= (gain * inverse[c] * scale[c] / count)[:, None]
            out -= centred
            out -= (gain * bias[c] / count)[:, None]
    return None if dx is None else _unplanes(xp, dx, X.shape, data_layout), scale, bias


def _batch_norm_rule(op_: Operator, block: Block) -> list[OpSpec]:
    """The gradient reads the running statistics only where the forward pass used them."""
    (spec,) = _BATCH_NORM_GRAD(op_, block)
    if op_.attrs.get("use_global_stats"):
        return [spec]
    kept = {s: n for s, n in spec.inputs.items() if s not in ("Mean", "Variance")}
    return [spec._replace(inputs=kept)]


ROWS["batch_norm"].grad = _batch_norm_rule


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


def _layer_norm_shape(ctx: Infer) -> None:
    x = ctx.x()
    axis = ctx.attr("begin_norm_axis")
    if not 0 < axis < len(x.shape):
        raise InvalidArgument(f"begin_norm_axis {axis} is outside of shape {list(x.shape)}")
    ctx.set("Y", like=x)
    for slot in ("Mean", "Variance"):
        ctx.set(slot, (product(x.shape[:axis]),), x.dtype, lod_level=0)


def _folded(x: Array, axis: int) -> Array:
    rows = 1
    for n in x.shape[:axis]:
        rows *= n
    return x.reshape(rows, -1)


@op(
    "layer_norm",
    infer=_layer_norm_shape,
    grad=GradOp(
        uses=("X", "Scale", "Bias", "Mean", "Variance"), wrt=("X", "Scale", "Bias"), of=("Y",)
    ),
    returns="Y Mean Variance",
)
def layer_norm(
    xp: Any, X: Array, Scale: Array, Bias: Array, begin_norm_axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    """Ba, Kiros and Hinton, arXiv 1607.06450."""
    y, mean, variance, _ = _standardised(xp, _folded(X, begin_norm_axis), epsilon)
    if Scale is not None:
        y *= Scale.reshape(-1)
    if Bias is not None:
        y += Bias.reshape(-1)
    return y.reshape(X.shape), mean, variance


@op("layer_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD")
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
) -> tuple[Array, Array, Array]:
    x, dy = _folded(X, begin_norm_axis), _folded(dY, begin_norm_axis)
    inverse = 1 / xp.sqrt(Variance.reshape(-1) + x.dtype.type(epsilon))
    normal = (x - Mean.reshape(-1)[:, None]) * inverse[:, None]
    scale = bias = None
    if Bias is not None:
        bias = dy.sum(axis=0).reshape(Bias.shape)
    if Scale is not None:
        scale = xp.einsum("rc,rc->c", dy, normal).reshape(Scale.shape)
        dy = dy * Scale.reshape(-1)
    return _row_gradient(xp, normal, dy, inverse).reshape(X.shape), scale, bias


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
    planes = _planes(X, data_layout)
    rows = planes.reshape(len(X) * groups, -1)
    y, mean, variance, _ = _standardised(xp, rows, epsilon)
    y = _affine(y.reshape(planes.shape), Scale, Bias)
    shape = (len(X), groups)
    return (
        _unplanes(xp, y, X.shape, data_layout),
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
    normal, dy = _planes(Y, data_layout), _planes(dY, data_layout)
    bias = None if Bias is None else dy.sum(axis=(0, 2))
    if Bias is not None:
        normal = normal - Bias[:, None]
    scale = None
    if Scale is not None:
        safe = xp.where(Scale == 0, xp.ones_like(Scale), Scale)
        normal = normal / safe[:, None]
        scale = _per_channel(xp, dy, normal)
        dy = dy * Scale[:, None]
    inverse = 1 / xp.sqrt(Variance.reshape(-1) + Y.dtype.type(epsilon))
    shape = (len(Y) * groups, -1)
    dx = _row_gradient(xp, normal.reshape(shape), dy.reshape(shape), inverse)
    return _unplanes(xp, dx.reshape(dy.shape), Y.shape, data_layout), scale, bias


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
    scale = _per_channel(xp, dy, normal.reshape(planes.shape))
    if Scale is not None:
        dy = dy * Scale[:, None]
    dx = _row_gradient(xp, normal, dy.reshape(rows.shape), SavedVariance)
    return dx.reshape(X.shape), scale, bias


# -- running summaries, and neighbouring channels ----------------------------------------------
def _data_norm_shape(ctx: Infer) -> None:
    x, size = ctx.x(), ctx.x("BatchSize")
    ctx.set("Y", like=x)
    for slot in ("Means", "Scales"):
        ctx.set(slot, size.shape, size.dtype, lod_level=0)


@op(
    "data_norm",
    infer=_data_norm_shape,
    grad=GradOp(
        uses=("X", "Means", "Scales", "scale_w", "bias"),
        wrt=("X", "BatchSize", "BatchSum", "BatchSquareSum", "scale_w", "bias"),
        of=("Y",),
    ),
    returns="Y Means Scales",
)
def data_norm(
    xp: Any,
    X: Array,
    BatchSize: Array,
    BatchSum: Array,
    BatchSquareSum: Array,
    scale_w: Array,
    bias: Array,
) -> tuple[Array, Array, Array]:
    """(x - sum / size) * sqrt(size / square sum), with summaries over all samples seen."""
    means = BatchSum / BatchSize
    scales = xp.sqrt(BatchSize / BatchSquareSum)
    y = (X - means) * scales
    if scale_w is not None:
        y *= scale_w
    if bias is not None:
        y += bias
    return y, means, scales


@op(
    "data_norm_grad",
    returns="X@GRAD BatchSize@GRAD BatchSum@GRAD BatchSquareSum@GRAD scale_w@GRAD bias@GRAD",
)
def data_norm_grad(
    xp: Any,
    X: Array,
    Means: Array,
    Scales: Array,
    scale_w: Array,
    bias: Array,
    dY: Array,
    epsilon: float,
) -> tuple[Array, ...]:
    """The gradients of the summaries are what this batch would add to them, as in Fluid."""
    count = X.dtype.type(len(X))
    centred = X - Means
    squares = xp.einsum("nc,nc->c", centred, centred) + count * X.dtype.type(epsilon)
    size = xp.full(Means.shape, count, dtype=X.dtype)
    dscale = None if scale_w is None else (dY * centred * Scales).sum(axis=0)
    dbias = None if bias is None else dY.sum(axis=0)
    dx = dY * (Scales if scale_w is None else Scales * scale_w)
    return dx, size, X.sum(axis=0), squares, dscale, dbias


def _lrn_shape(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x())
    ctx.set("MidOut", like=ctx.x())


def _neighbours(xp: Any, x: Array, n: int) -> Array:
    """The sum over `n` channels around each one."""
    before = (n - 1) // 2
    border = xp.zeros((x.shape[0], x.shape[1] + n - 1, *x.shape[2:]), dtype=x.dtype)
    border[:, before : before + x.shape[1]] = x
    total = border[:, : x.shape[1]].copy()
    for i in range(1, n):
        total += border[:, i : i + x.shape[1]]
    return total


@op(
    "lrn",
    infer=_lrn_shape,
    grad=GradOp(uses=("X", "Out", "MidOut"), of=("Out",)),
    returns="Out MidOut",
)
def lrn(
    xp: Any, X: Array, n: int, k: float, alpha: float, beta: float, data_format: str
) -> tuple[Array, Array]:
    """x / (k + alpha * sum of squares over n channels)^beta; Krizhevsky et al. 2012, 3.3."""
    x = X.transpose(0, 3, 1, 2) if data_format == "NHWC" else X
    mid = _neighbours(xp, x * x, n)
    mid *= X.dtype.type(alpha)
    mid += X.dtype.type(k)
    y = x * mid ** X.dtype.type(-beta)
    if data_format == "NHWC":
        return xp.ascontiguousarray(y.transpose(0, 2, 3, 1)), mid.transpose(0, 2, 3, 1)
    return y, mid


@op("lrn_grad")
def lrn_grad(
    xp: Any,
    X: Array,
    Out: Array,
    MidOut: Array,
    dOut: Array,
    n: int,
    alpha: float,
    beta: float,
    data_format: str,
) -> Array:
    order = (0, 3, 1, 2) if data_format == "NHWC" else (0, 1, 2, 3)
    x, y, mid, dy = (a.transpose(order) for a in (X, Out, MidOut, dOut))
    spread = _neighbours(xp, dy * y / mid, n)
    dx = dy * mid ** X.dtype.type(-beta) - X.dtype.type(2 * alpha * beta) * x * spread
    return xp.ascontiguousarray(dx.transpose(0, 2, 3, 1)) if data_format == "NHWC" else dx
