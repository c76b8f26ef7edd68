"""Diagonals, triangles, grids, and distances between tensors."""

from collections.abc import Sequence

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .elementwise import gathered
from .shapes import aligned, same_as
from .table import GradOp, Infer, no_gradient, op

Pair = tuple[Array, Array]


# -- diagonals ---------------------------------------------------------------------------------
def _embed_rule(ctx: Infer) -> None:
    x = ctx.x("Input")
    size = x.shape[-1] + abs(ctx.attr("offset")) if x.shape[-1] >= 0 else -1
    rank = len(x.shape) + 1
    at = sorted((ctx.attr("dim1") % rank, ctx.attr("dim2") % rank))
    shape = list(x.shape[:-1])
    for place in at:
        shape.insert(place, size)
    ctx.set("Out", shape, like=x)


@op("diag_embed", infer=_embed_rule, grad=no_gradient)
def diag_embed(xp: Array, Input: Array, offset: int, dim1: int, dim2: int) -> Array:
    size = Input.shape[-1] + abs(offset)
    out = xp.zeros((*Input.shape[:-1], size, size), dtype=Input.dtype)
    places = xp.arange(Input.shape[-1])
    out[..., places + max(-offset, 0), places + max(offset, 0)] = Input
    return xp.moveaxis(out, (-2, -1), (dim1, dim2))


def _trace_rule(ctx: Infer) -> None:
    x = ctx.x("Input")
    gone = {ctx.attr("dim1") % len(x.shape), ctx.attr("dim2") % len(x.shape)}
    ctx.set("Out", [n for i, n in enumerate(x.shape) if i not in gone] or [1], like=x)


@op("trace", infer=_trace_rule, grad=GradOp(uses=("Input",)))
def trace(xp: Array, Input: Array, offset: int, dim1: int, dim2: int) -> Array:
    return xp.atleast_1d(xp.trace(Input, offset, dim1, dim2))


@op("trace_grad")
def trace_grad(xp: Array, Input: Array, dOut: Array, offset: int, dim1: int, dim2: int) -> Array:
    rows, columns = Input.shape[dim1], Input.shape[dim2]
    here = xp.eye(rows, columns, offset, dtype=dOut.dtype)
    batch = [
        n for i, n in enumerate(Input.shape) if i not in (dim1 % Input.ndim, dim2 % Input.ndim)
    ]
    return xp.moveaxis(dOut.reshape(*batch, 1, 1) * here, (-2, -1), (dim1, dim2))


@op("tril_triu", infer=same_as("X"), grad=GradOp(wrt=("X",)))
def tril_triu(xp: Array, X: Array, diagonal: int, lower: bool) -> Array:
    return xp.tril(X, diagonal) if lower else xp.triu(X, diagonal)


@op("tril_triu_grad")
def tril_triu_grad(xp: Array, dOut: Array, diagonal: int, lower: bool) -> Array:
    return xp.tril(dOut, diagonal) if lower else xp.triu(dOut, diagonal)


# -- grids -------------------------------------------------------------------------------------
def _grid_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    if any(len(x.shape) > 1 for x in xs):
        raise InvalidArgument("meshgrid takes vectors")
    shape = [x.shape[0] if x.shape else 1 for x in xs]
    for i, x in enumerate(xs):
        ctx.set("Out", shape, x.dtype, index=i)


@op("meshgrid", infer=_grid_rule, grad=GradOp(uses=("X",)), lod=None)
def meshgrid(xp: Array, X: list[Array]) -> list[Array]:
    return [xp.ascontiguousarray(part) for part in xp.meshgrid(*X, indexing="ij")]


@op("meshgrid_grad")
def meshgrid_grad(xp: Array, X: list[Array], dOut: list[Array]) -> list[Array]:
    return [
        grad.sum(tuple(j for j in range(grad.ndim) if j != i)).reshape(x.shape)
        for i, (x, grad) in enumerate(zip(X, dOut, strict=True))
    ]


# -- norms and distances -----------------------------------------------------------------------
def _distance_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    aligned(x.shape, y.shape, -1, "dist")
    ctx.set("Out", (1,), like=x, lod_level=0)


@op("dist", infer=_distance_rule, grad=GradOp(uses=("X", "Y", "Out"), wrt=("X", "Y")), lod=None)
def dist(xp: Array, X: Array, Y: Array, p: float) -> Array:
    return _norm(xp, xp.abs(X - Y), p, None).reshape(1)


def _norm(xp: Array, size: Array, p: float, axis: int | None, keepdims: bool = False) -> Array:
    """The p-norm of absolute values."""
    if p == 0:
        return (size != 0).sum(axis, dtype=size.dtype, keepdims=keepdims)
    if p in (float("inf"), float("-inf")):
        return (size.max if p > 0 else size.min)(axis, keepdims=keepdims)
    kind = size.dtype.type
    return xp.power(xp.power(size, kind(p)).sum(axis, keepdims=keepdims), kind(1 / p))


def _norm_slope(xp: Array, x: Array, norm: Array, p: float) -> Array:
    """The derivative of the p-norm `norm` of `x`, zero where it has none."""
    size, kind = xp.abs(x), x.dtype.type
    if p == 0:
        return xp.zeros_like(x)
    if p in (float("inf"), float("-inf")):
        return xp.sign(x) * (size == norm)
    ratio = size / xp.where(norm == 0, kind(1), norm)
    safe = xp.where(size == 0, kind(1), ratio)
    return xp.sign(x) * xp.power(safe, kind(p - 1)) * (size != 0)


@op("dist_grad")
def dist_grad(
    xp: Array, X: Array, Y: Array, Out: Array, dOut: Array, p: float, need: frozenset[str]
) -> Pair:
    slope = _norm_slope(xp, X - Y, Out.reshape(()), p) * dOut.reshape(())
    dx = gathered(xp, slope, X, -1) if "X@GRAD" in need else None
    return dx, -gathered(xp, slope, Y, -1) if "Y@GRAD" in need else None


def _p_norm_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    at, keep = ctx.attr("axis") % len(x.shape), ctx.attr("keepdim")
    shape = [1 if i == at else n for i, n in enumerate(x.shape) if keep or i != at]
    ctx.set("Out", shape or [1], like=x)


@op("p_norm", infer=_p_norm_rule, grad=GradOp(uses=("X", "Out"), wrt=("X",)))
def p_norm(xp: Array, X: Array, porder: float, axis: int, keepdim: bool) -> Array:
    return xp.atleast_1d(_norm(xp, xp.abs(X), porder, axis, keepdim))


@op("p_norm_grad")
def p_norm_grad(xp: Array, X: Array, Out: Array, dOut: Array, porder: float, axis: int) -> Array:
    shape = [1 if i == axis % X.ndim else n for i, n in enumerate(X.shape)]
    return _norm_slope(xp, X, Out.reshape(shape), porder) * dOut.reshape(shape)


def _frobenius_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    dims = {d % len(x.shape) for d in ctx.attr("dim")}
    if ctx.attr("reduce_all"):
        dims = set(range(len(x.shape)))
    keep = ctx.attr("keep_dim")
    shape = [1 if i in dims else n for i, n in enumerate(x.shape) if keep or i not in dims]
    ctx.set("Out", shape or [1], like=x)


@op("frobenius_norm", infer=_frobenius_rule, grad=GradOp(uses=("X", "Out"), wrt=("X",)))
def frobenius_norm(
    xp: Array, X: Array, dim: Sequence[int], keep_dim: bool, reduce_all: bool
) -> Array:
    over = None if reduce_all else tuple(dim)
    return xp.atleast_1d(xp.sqrt((X * X).sum(over, keepdims=keep_dim)))


@op("frobenius_norm_grad")
def frobenius_norm_grad(
    xp: Array, X: Array, Out: Array, dOut: Array, dim: Sequence[int], reduce_all: bool
) -> Array:
    gone = set(range(X.ndim)) if reduce_all else {d % X.ndim for d in dim}
    shape = [1 if i in gone else n for i, n in enumerate(X.shape)]
    return X * (dOut / Out).reshape(shape)
