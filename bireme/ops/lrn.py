"""lrn: each channel normalised by its neighbours."""

from typing import Any

from bireme.arrays.namespaces import Array

from .table import GradOp, Infer, op


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
