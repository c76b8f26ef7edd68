"""Operators that pick, place and order elements by index."""

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import VarType, numpy_name

from .fill import numbers
from .table import GradOp, Infer, op

Pair = tuple[Array, Array]


def _inside(index: Array, size: int, name: str) -> Array:
    """A flat index, checked: nothing below 0 or beyond the end.

    Raises:
        InvalidArgument: an index is outside.
    """
    flat = index.reshape(-1)
    if flat.size and bool(((flat < 0) | (flat >= size)).any()):
        wrong = flat[(flat < 0) | (flat >= size)][0]
        raise InvalidArgument(f"{name}: index {int(wrong)} is not below {size}")
    return flat


def _put(xp: Array, out: Array, rows: Array, values: Array) -> None:
    """out[rows] = values, where the last value for a row counts; a device would take any."""
    if xp is not np:
        kept = _is_last(xp, rows, len(out))
        rows, values = rows[kept], values[kept]
    out[rows] = values


def _is_last(xp: Array, rows: Array, height: int) -> Array:
    """Whether each of these rows comes no more after its place."""
    number = xp.arange(len(rows), dtype=xp.int32)
    last = xp.full(height, -1, dtype=xp.int32)
    xp.maximum.at(last, rows, number)
    kept: Array = last[rows] == number
    return kept


# -- rows --------------------------------------------------------------------------------------
def _gather_rule(ctx: Infer) -> None:
    x, index = ctx.x("X"), ctx.x("Index")
    ctx.set("Out", (index.shape[0], *x.shape[1:]), like=x)


@op("gather", infer=_gather_rule, grad=GradOp(uses=("X", "Index"), wrt=("X",)), lod=None)
def gather(xp: Array, X: Array, Index: Array) -> Array:
    return X[_inside(Index, len(X), "gather")]


@op("gather_grad")
def gather_grad(xp: Array, X: Array, Index: Array, dOut: Array) -> Array:
    """Gradients of rows gathered twice add up, whatever the attribute `overwrite` says."""
    dx = xp.zeros(X.shape, dtype=dOut.dtype)
    xp.add.at(dx, Index.reshape(-1), dOut)
    return dx


def _scatter_rule(ctx: Infer) -> None:
    x, ids, updates = ctx.x("X"), ctx.x("Ids"), ctx.x("Updates")
    rows_differ = ids.shape[0] != updates.shape[0] and ids.shape[0] >= 0 and updates.shape[0] >= 0
    if rows_differ or len(x.shape) != len(updates.shape):
        raise InvalidArgument(
            f"scatter: updates {list(updates.shape)} do not fit ids {list(ids.shape)} "
            f"of {list(x.shape)}"
        )
    ctx.set("Out", like=x)


@op(
    "scatter",
    infer=_scatter_rule,
    grad=GradOp(uses=("Ids", "Updates"), wrt=("X", "Updates")),
    lod=None,
)
def scatter(xp: Array, X: Array, Ids: Array, Updates: Array, overwrite: bool) -> Array:
    ids = _inside(Ids, len(X), "scatter")
    out = X.copy()
    if overwrite:
        _put(xp, out, ids, Updates)
        return out
    out[ids] = 0
    xp.add.at(out, ids, Updates)
    return out


@op("scatter_grad")
def scatter_grad(
    xp: Array, Ids: Array, Updates: Array, dOut: Array, need: frozenset[str], overwrite: bool
) -> Pair:
    """What was overwritten, a row or an earlier update of it, has a gradient of zero."""
    ids = Ids.reshape(-1)
    dx = du = None
    if "X@GRAD" in need:
        dx = dOut.copy()
        dx[ids] = 0
    if "Updates@GRAD" in need:
        du = dOut[ids]
        if overwrite:
            du[~_is_last(xp, ids, len(dOut))] = 0
    return dx, du


def _select_rule(ctx: Infer) -> None:
    x, index = ctx.x("X"), ctx.x("Index")
    at = ctx.attr("dim") % len(x.shape)
    ctx.set("Out", (*x.shape[:at], index.shape[0], *x.shape[at + 1 :]), like=x)


@op("index_select", infer=_select_rule, grad=GradOp(uses=("X", "Index"), wrt=("X",)))
def index_select(xp: Array, X: Array, Index: Array, dim: int) -> Array:
    return xp.take(X, _inside(Index, X.shape[dim], "index_select"), axis=dim)


@op("index_select_grad")
def index_select_grad(xp: Array, X: Array, Index: Array, dOut: Array, dim: int) -> Array:
    rows = xp.moveaxis(dOut, dim, 0)
    total = xp.zeros((X.shape[dim], *rows.shape[1:]), dtype=dOut.dtype)
    xp.add.at(total, Index.reshape(-1), rows)
    return xp.moveaxis(total, 0, dim)


def _sample_rule(ctx: Infer) -> None:
    ctx.set("Out", ctx.x("Index").shape, like=ctx.x("X"))


@op("index_sample", infer=_sample_rule, grad=GradOp(uses=("X", "Index"), wrt=("X",)))
def index_sample(xp: Array, X: Array, Index: Array) -> Array:
    return xp.take_along_axis(X, Index, 1)


@op("index_sample_grad")
def index_sample_grad(xp: Array, X: Array, Index: Array, dOut: Array) -> Array:
    dx = xp.zeros(X.shape, dtype=dOut.dtype)
    xp.add.at(dx, (xp.arange(len(X))[:, None], Index), dOut)
    return dx


# -- several dimensions ------------------------------------------------------------------------
def _gather_nd_rule(ctx: Infer) -> None:
    x, index = ctx.x("X"), ctx.x("Index")
    depth = index.shape[-1]
    if depth > len(x.shape):
        raise InvalidArgument(
            f"gather_nd: index {list(index.shape)} is too deep for {list(x.shape)}"
        )
    ctx.set("Out", (*index.shape[:-1], *x.shape[depth:]), like=x)


def _places(xp: Array, x: Array, index: Array) -> tuple[Array, tuple[Array, ...]]:
    """x and the coordinates that `index` names in it; an index of no coordinates names all of x."""
    if index.shape[-1] == 0:
        return x[None], (xp.zeros(index.shape[:-1], dtype=xp.int64),)
    return x, tuple(index[..., i] for i in range(index.shape[-1]))


@op("gather_nd", infer=_gather_nd_rule, grad=GradOp(uses=("X", "Index"), wrt=("X",)), lod=None)
def gather_nd(xp: Array, X: Array, Index: Array) -> Array:
    x, at = _places(xp, X, Index)
    return x[at]


@op("gather_nd_grad")
def gather_nd_grad(xp: Array, X: Array, Index: Array, dOut: Array) -> Array:
    dx = xp.zeros(X.shape, dtype=dOut.dtype)
    xp.add.at(*_places(xp, dx, Index), dOut)
    return dx


def _scatter_nd_rule(ctx: Infer) -> None:
    x, index, updates = ctx.x("X"), ctx.x("Index"), ctx.x("Updates")
    want = (*index.shape[:-1], *x.shape[index.shape[-1] :])
    known = all(m == n or m < 0 or n < 0 for m, n in zip(want, updates.shape, strict=False))
    if len(want) != len(updates.shape) or not known:
        raise InvalidArgument(
            f"scatter_nd_add: updates {list(updates.shape)} do not fit index {list(index.shape)} "
            f"of {list(x.shape)}",
            hint=f"updates of shape {list(want)} are needed",
        )
    ctx.set("Out", like=x)


@op(
    "scatter_nd_add",
    infer=_scatter_nd_rule,
    grad=GradOp(uses=("Index", "Updates"), wrt=("X", "Updates")),
)
def scatter_nd_add(xp: Array, X: Array, Index: Array, Updates: Array) -> Array:
    out = X.copy()
    xp.add.at(*_places(xp, out, Index), Updates)
    return out


@op("scatter_nd_add_grad")
def scatter_nd_add_grad(xp: Array, Index: Array, dOut: Array, need: frozenset[str]) -> Pair:
    dx = dOut.copy() if "X@GRAD" in need else None
    if "Updates@GRAD" not in need:
        return dx, None
    given, at = _places(xp, dOut, Index)
    return dx, given[at]


# -- one_hot -----------------------------------------------------------------------------------
def _hot_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    last = ctx.op.type == "one_hot"
    if last and x.shape[-1] not in (1, -1):
        raise InvalidArgument(f"one_hot: the last dimension of {list(x.shape)} must be 1")
    depth = -1 if ctx.input("depth_tensor") is not None else ctx.attr("depth")
    shape = (*(x.shape[:-1] if last else x.shape), depth)
    ctx.set("Out", shape, VarType(ctx.attr("dtype")), lod_level=x.lod_level)


def _hot(xp: Array, ids: Array, depth: int, anywhere: bool, dtype: int) -> Array:
    flat = ids.reshape(-1)
    if not anywhere:
        _inside(flat, depth, "one_hot")
    rows = flat[:, None] == xp.arange(depth, dtype=flat.dtype)
    return rows.astype(numpy_name(VarType(dtype)))


@op("one_hot", infer=_hot_rule)
def one_hot(
    xp: Array, X: Array, depth_tensor: Array, depth: int, allow_out_of_range: bool, dtype: int
) -> Array:
    size = depth if depth_tensor is None else numbers(depth_tensor)[0]
    return _hot(xp, X, size, allow_out_of_range, dtype).reshape(*X.shape[:-1], size)


@op("one_hot_v2", infer=_hot_rule)
def one_hot_v2(
    xp: Array, X: Array, depth_tensor: Array, depth: int, allow_out_of_range: bool, dtype: int
) -> Array:
    size = depth if depth_tensor is None else numbers(depth_tensor)[0]
    return _hot(xp, X, size, allow_out_of_range, dtype).reshape(*X.shape, size)


# -- order -------------------------------------------------------------------------------------
def _extreme_rule(ctx: Infer) -> None:
    x, axis = ctx.x("X"), ctx.attr("axis")
    if not -len(x.shape) <= axis < len(x.shape):
        raise InvalidArgument(f"{ctx.op.type}: axis {axis} does not exist in {list(x.shape)}")
    at = axis % len(x.shape)
    shape = [n for i, n in enumerate(x.shape) if i != at]
    if ctx.attr("keepdims"):
        shape.insert(at, 1)
    dtype = ctx.attr("dtype")
    kind = VarType.INT64 if dtype is None or dtype < 0 else VarType(dtype)
    ctx.set("Out", shape or [1], kind, lod_level=0)


def _place(xp: Array, found: Array, axis: int, keepdims: bool | None, kind: str) -> Array:
    found = xp.expand_dims(found, axis) if keepdims else found
    return xp.atleast_1d(found).astype(kind, copy=False)


@op("arg_max", infer=_extreme_rule, lod=None)
def arg_max(xp: Array, X: Array, axis: int, keepdims: bool | None, out_dtype: str) -> Array:
    return _place(xp, xp.argmax(X, axis=axis), axis, keepdims, out_dtype)


@op("arg_min", infer=_extreme_rule, lod=None)
def arg_min(xp: Array, X: Array, axis: int, keepdims: bool | None, out_dtype: str) -> Array:
    return _place(xp, xp.argmin(X, axis=axis), axis, keepdims, out_dtype)


def _sort_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))
    ctx.set("Indices", like=ctx.x("X"), dtype=VarType.INT64)


@op(
    "argsort",
    infer=_sort_rule,
    grad=GradOp(uses=("X", "Indices"), wrt=("X",), of=("Out",)),
    returns="Out Indices",
)
def argsort(xp: Array, X: Array, axis: int, descending: bool) -> Pair:
    order = xp.argsort(-X if descending else X, axis=axis, kind="stable")
    return xp.take_along_axis(X, order, axis), order.astype(xp.int64, copy=False)


@op("argsort_grad")
def argsort_grad(xp: Array, X: Array, Indices: Array, dOut: Array, axis: int) -> Array:
    back = xp.argsort(Indices, axis=axis)
    return xp.take_along_axis(dOut, back, axis)


# -- selection ---------------------------------------------------------------------------------
def _where_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if x.shape != y.shape:
        raise InvalidArgument(f"where: {list(x.shape)} and {list(y.shape)} differ")
    ctx.set("Out", like=x)


@op("where", infer=_where_rule, grad=GradOp(uses=("Condition", "X", "Y"), wrt=("X", "Y")), lod="X")
def where(xp: Array, Condition: Array, X: Array, Y: Array) -> Array:
    return xp.where(Condition, X, Y)


@op("where_grad")
def where_grad(
    xp: Array, Condition: Array, X: Array, Y: Array, dOut: Array, need: frozenset[str]
) -> Pair:
    dx = dOut * Condition if "X@GRAD" in need else None
    return dx, dOut * ~Condition if "Y@GRAD" in need else None


def _where_index_rule(ctx: Infer) -> None:
    ctx.set("Out", (-1, len(ctx.x("Condition").shape)), VarType.INT64, lod_level=0)


@op("where_index", infer=_where_index_rule, lod=None)
def where_index(xp: Array, Condition: Array) -> Array:
    return xp.argwhere(Condition).astype(xp.int64, copy=False)


def _unique_rule(ctx: Infer) -> None:
    x, kind = ctx.x("X"), VarType(ctx.attr("dtype"))
    ctx.set("Out", (-1,), x.dtype)
    ctx.set("Index", x.shape, kind)
    ctx.set("Count", (-1,), kind)


@op("unique", infer=_unique_rule, returns="Out Index", lod=None)
def unique(xp: Array, X: Array, dtype: int) -> Pair:
    values, index, _ = _distinct(xp, X)
    return values, index.astype(numpy_name(VarType(dtype)))


@op("unique_with_counts", infer=_unique_rule, returns="Out Index Count", lod=None)
def unique_with_counts(xp: Array, X: Array, dtype: int) -> tuple[Array, Array, Array]:
    values, index, counts = _distinct(xp, X)
    kind = numpy_name(VarType(dtype))
    return values, index.astype(kind), counts.astype(kind)


def _distinct(xp: Array, x: Array) -> tuple[Array, Array, Array]:
    """Distinct values in the order in which they first come, where each element's stands,
    counts.
    """
    values, first, inverse, counts = xp.unique(
        x.reshape(-1), return_index=True, return_inverse=True, return_counts=True
    )
    order = xp.argsort(first)
    rank = xp.argsort(order)
    return values[order], rank[inverse.reshape(-1)], counts[order]


def _shard_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


@op("shard_index", infer=_shard_rule)
def shard_index(
    xp: Array, X: Array, index_num: int, nshards: int, shard_id: int, ignore_value: int
) -> Array:
    size = (index_num + nshards - 1) // nshards
    return xp.where(X // size == shard_id, X % size, ignore_value)
