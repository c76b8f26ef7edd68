"""data_norm: normalises by summaries of all samples seen so far, which it also updates."""

from typing import Any

from bireme.arrays.namespaces import Array

from .table import GradOp, Infer, op


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
