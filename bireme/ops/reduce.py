"""Sums, means, extremes and norms: operators that make tensors smaller, and the sum of several
tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType, grad_name

from .shapes import same_as
from .table import GradOp, Infer, OpSpec, no_gradient, op
from .tiles import applied, fill, total

Dims = tuple[int, ...]


# -- reduce_*: over the dimensions `dim` -------------------------------------------------------
def _reduce_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    rank = len(x.shape)
    every = ctx.attr("reduce_all")
    dims = set(range(rank)) if every else _checked(ctx, ctx.attr("dim"), rank)
    keep = ctx.attr("keep_dim")
    shape = [1 if i in dims else n for i, n in enumerate(x.shape) if keep or i not in dims]
    declared = ctx.attr("out_dtype")
    dtype = VarType(declared) if declared is not None and declared >= 0 else None
    ctx.set("Out", shape or [1], dtype, like=x, lod_level=x.lod_level if 0 not in dims else 0)


def _checked(ctx: Infer, dim: Sequence[int] | int, rank: int) -> set[int]:
    dims = [dim] if isinstance(dim, int) else list(dim)
    if any(not -rank <= d < rank for d in dims):
        raise InvalidArgument(
            f"{ctx.op.type}: dimensions {dims} do not all exist in {list(ctx.x('X').shape)}"
        )
    return {d % rank for d in dims}


def _over(x: Array, dim: Dims, reduce_all: bool) -> Dims | None:
    """The axes to reduce; None for all."""
    if reduce_all or len(dim) == x.ndim:
        return None
    return tuple(dim)


def _shaped(found: Array, keep_dim: bool) -> Array:
    return found if found.ndim or keep_dim else found.reshape(1)


def _spread(x: Array, value: Array, dim: Dims, reduce_all: bool) -> Array:
    """`value`, which came from reducing `x`, with a size of 1 where `x` was reduced."""
    over = _over(x, dim, reduce_all)
    if over is None:
        return value.reshape((1,) * x.ndim)
    gone = {d % x.ndim for d in over}
    return value.reshape([1 if i in gone else n for i, n in enumerate(x.shape)])


def _rows_stay(
    lods: Mapping[str, Any], values: Mapping[str, Any], attrs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Sequences remain unless rows are reduced."""
    over = _over(values["X"], tuple(attrs.get("dim", (0,))), attrs.get("reduce_all", False))
    rows = over is None or 0 in {d % values["X"].ndim for d in over}
    return {} if rows else {"Out": lods["X"]}


_OF_X = GradOp(uses=("X",))
_OF_BOTH = GradOp(uses=("X", "Out"))


@op("reduce_sum", infer=_reduce_rule, grad=_OF_X, lod=_rows_stay)
def reduce_sum(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    over = _over(X, dim, reduce_all)
    if over is None and not keep_dim:
        return total(xp, X).reshape(1)
    return _shaped(X.sum(over, X.dtype, keepdims=keep_dim), keep_dim)


@op("reduce_sum_grad")
def reduce_sum_grad(
    xp: Array, X: Array, dOut: Array, dim: Dims, reduce_all: bool, out: Array = None
) -> Array:
    if out is None:
        out = xp.empty(X.shape, dtype=dOut.dtype)
    return fill(xp, out, _spread(X, dOut, dim, reduce_all))


@op("reduce_mean", infer=_reduce_rule, grad=_OF_X, lod=_rows_stay)
def reduce_mean(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(xp.mean(X, _over(X, dim, reduce_all), keepdims=keep_dim), keep_dim)


@op("reduce_mean_grad")
def reduce_mean_grad(
    xp: Array, X: Array, dOut: Array, dim: Dims, reduce_all: bool, out: Array = None
) -> Array:
    if out is None:
        out = xp.empty(X.shape, dtype=dOut.dtype)
    share = dOut / dOut.dtype.type(X.size / max(dOut.size, 1))
    return fill(xp, out, _spread(X, share, dim, reduce_all))


@op("reduce_max", infer=_reduce_rule, grad=_OF_BOTH, lod=_rows_stay)
def reduce_max(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(xp.max(X, _over(X, dim, reduce_all), keepdims=keep_dim), keep_dim)


@op("reduce_min", infer=_reduce_rule, grad=_OF_BOTH, lod=_rows_stay)
def reduce_min(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(xp.min(X, _over(X, dim, reduce_all), keepdims=keep_dim), keep_dim)


def _extreme_grad(
    xp: Array, X: Array, Out: Array, dOut: Array, dim: Dims, reduce_all: bool
) -> Array:
    """Every element that equals the extreme gets the whole gradient."""
    here = _spread(X, Out, dim, reduce_all) == X
    return here * _spread(X, dOut, dim, reduce_all)


op("reduce_max_grad")(_extreme_grad)
op("reduce_min_grad")(_extreme_grad)


@op("reduce_prod", infer=_reduce_rule, grad=_OF_BOTH, lod=_rows_stay)
def reduce_prod(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(
        xp.prod(X, _over(X, dim, reduce_all), dtype=X.dtype, keepdims=keep_dim), keep_dim
    )


@op("reduce_prod_grad")
def reduce_prod_grad(
    xp: Array, X: Array, Out: Array, dOut: Array, dim: Dims, reduce_all: bool
) -> Array:
    return _spread(X, dOut * Out, dim, reduce_all) / X


@op("reduce_all", infer=_reduce_rule, lod=_rows_stay)
def reduce_all_(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(xp.all(X, _over(X, dim, reduce_all), keepdims=keep_dim), keep_dim)


@op("reduce_any", infer=_reduce_rule, lod=_rows_stay)
def reduce_any(xp: Array, X: Array, dim: Dims, keep_dim: bool, reduce_all: bool) -> Array:
    return _shaped(xp.any(X, _over(X, dim, reduce_all), keepdims=keep_dim), keep_dim)


# -- one number --------------------------------------------------------------------------------
def scalar_rule(ctx: Infer) -> None:
    """Out has one element of the dtype of X."""
    ctx.set("Out", (1,), like=ctx.x("X"), lod_level=0)


@op("mean", infer=scalar_rule, grad=_OF_X, lod=None)
def mean(xp: Array, X: Array) -> Array:
    return total(xp, X).reshape(1) / X.dtype.type(max(X.size, 1))


@op("mean_grad")
def mean_grad(xp: Array, X: Array, dOut: Array, out: Array = None) -> Array:
    if out is None:
        out = xp.empty(X.shape, dtype=dOut.dtype)
    return fill(xp, out, dOut / dOut.dtype.type(max(X.size, 1)))


@op("squared_l2_norm", infer=scalar_rule, grad=_OF_X, lod=None)
def squared_l2_norm(xp: Array, X: Array) -> Array:
    flat = X.reshape(-1)
    return xp.dot(flat, flat).reshape(1)


@op("squared_l2_norm_grad")
def squared_l2_norm_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return X * (dOut * 2).reshape(())


@op("l1_norm", infer=scalar_rule, grad=_OF_X, lod=None)
def l1_norm(xp: Array, X: Array) -> Array:
    return xp.abs(X).sum().reshape(1)


@op("l1_norm_grad")
def l1_norm_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return xp.sign(X) * dOut.reshape(())


# -- sum: of several tensors -------------------------------------------------------------------
def _sum_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    dense = [x for x in xs if x.type != VarType.SELECTED_ROWS]
    like = max(dense or xs, key=lambda x: len(x.shape) - x.shape.count(-1))
    for x in dense:
        same = len(x.shape) == len(like.shape) and all(
            m == n or m < 0 or n < 0 for m, n in zip(x.shape, like.shape, strict=True)
        )
        if not same and x.shape and like.type == VarType.LOD_TENSOR:
            raise InvalidArgument(f"sum: shapes {list(like.shape)} and {list(x.shape)} differ")
    kind = None if dense else VarType.SELECTED_ROWS
    ctx.set("Out", like=like, type=like.type if like.type == VarType.LOD_TENSOR_ARRAY else kind)


def _sum_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """Every term gets the gradient of the sum."""
    given = [grad_name(n) for n in op.output("Out")]
    attrs = {"scale": 1.0}
    return [OpSpec("scale", {"X": given}, {"Out": [grad_name(n)]}, attrs) for n in op.input("X")]


@op("sum", infer=_sum_rule, grad=_sum_gradient, inplace={"Out": "X"}, out="Out")
def add_up(xp: Array, X: list[Array], out: Array = None) -> Array:
    if any(isinstance(x, SelectedRows) for x in X):
        return _sum_of_rows(xp, X)
    if isinstance(X[0], list):
        return _sum_of_arrays(xp, X)
    if len(X) == 1:
        return xp.copy(X[0]) if out is None else _filled(out, X[0])
    out = applied(xp, xp.add, X[0], X[1], out)
    for x in X[2:]:
        out = applied(xp, xp.add, out, x, out)
    return out


def _filled(out: Array, value: Array) -> Array:
    out[...] = value
    return out


def _sum_of_rows(xp: Array, xs: list[Array]) -> Array:
    """Rows are put one after the other; beside a dense term they are added to it."""
    sparse = [x for x in xs if isinstance(x, SelectedRows)]
    dense = [x for x in xs if not isinstance(x, SelectedRows)]
    if not dense:
        rows = xp.concatenate([xp.asarray(x.rows) for x in sparse])
        return SelectedRows(rows, xp.concatenate([x.value for x in sparse]), sparse[0].height)
    found = dense[0].copy()
    for x in dense[1:]:
        found += x
    for x in sparse:
        grad = x.merged()
        found[grad.rows] += grad.value
    return found


def _sum_of_arrays(xp: Array, xs: list[Array]) -> Array:
    """Arrays of tensors add up entry by entry; missing entries count as nothing."""
    found = type(xs[0])()
    for i in range(max(map(len, xs))):
        terms = [x[i] for x in xs if i < len(x) and x[i] is not None]
        found.append(add_up(xp, terms) if terms else None)
    return found


# -- running sums ------------------------------------------------------------------------------
def _cumsum_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The running sum from the other end."""
    attrs = {**op.attrs, "reverse": not op.attrs.get("reverse", False)}
    inputs = {"X": [grad_name(n) for n in op.output("Out")]}
    return [OpSpec("cumsum", inputs, {"Out": [grad_name(n) for n in op.input("X")]}, attrs)]


@op("cumsum", infer=same_as("X"), grad=_cumsum_gradient)
def cumsum(xp: Array, X: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = xp.flip(X, axis) if reverse else X
    found = xp.cumsum(x, axis=axis, dtype=X.dtype)
    if exclusive:
        found -= x
    return xp.flip(found, axis) if reverse else found


# -- norms along an axis -----------------------------------------------------------------------
def _norm_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    axis = ctx.attr("axis") % len(x.shape)
    ctx.set("Out", like=x)
    ctx.set("Norm", [1 if i == axis else n for i, n in enumerate(x.shape)], x.dtype)


@op("norm", infer=_norm_rule, grad=GradOp(uses=("X", "Norm")), returns="Out Norm", lod=None)
def norm(xp: Array, X: Array, axis: int, epsilon: float) -> tuple[Array, Array]:
    size = xp.sqrt((X * X).sum(axis, keepdims=True) + X.dtype.type(epsilon))
    return X / size, size


@op("norm_grad")
def norm_grad(xp: Array, X: Array, Norm: Array, dOut: Array, axis: int) -> Array:
    along = (X * dOut).sum(axis, keepdims=True)
    return (dOut - X * (along / (Norm * Norm))) / Norm


@op("clip_by_norm", infer=same_as("X"), grad=no_gradient)
def clip_by_norm(xp: Array, X: Array, max_norm: float) -> Array:
    flat = X.reshape(-1)
    size = xp.sqrt(xp.dot(flat, flat))
    limit = X.dtype.type(max_norm)
    return X * xp.minimum(limit / xp.maximum(size, limit), X.dtype.type(1))
