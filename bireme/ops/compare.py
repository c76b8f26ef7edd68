"""Comparisons, logic, and questions about whole tensors."""

from collections.abc import Callable

from bireme.arrays.namespaces import Array
from bireme.ir import VarType

from .elementwise import fitted
from .shapes import aligned
from .table import Infer, no_gradient, op


# -- element by element ------------------------------------------------------------------------
def _compare_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    axis = ctx.attr("axis")
    shape = aligned(x.shape, y.shape, -1 if axis is None else axis, ctx.op.type)
    ctx.set("Out", shape, VarType.BOOL, lod_level=x.lod_level)


def _comparison(type: str, function: str) -> None:
    def kernel(xp: Array, X: Array, Y: Array, axis: int) -> Array:
        return getattr(xp, function)(*fitted(X, Y, axis))

    op(type, infer=_compare_rule)(kernel)


for _type, _function in {
    "less_than": "less",
    "less_equal": "less_equal",
    "greater_than": "greater",
    "greater_equal": "greater_equal",
    "equal": "equal",
    "not_equal": "not_equal",
}.items():
    _comparison(_type, _function)


def _logic(type: str, function: str) -> None:
    def kernel(xp: Array, X: Array, Y: Array) -> Array:
        return getattr(xp, function)(X, Y)

    op(type, infer=_compare_rule)(kernel)


for _type in ("logical_and", "logical_or", "logical_xor"):
    _logic(_type, _type)


def _not_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"), dtype=VarType.BOOL)


@op("logical_not", infer=_not_rule)
def logical_not(xp: Array, X: Array) -> Array:
    return xp.logical_not(X)


# -- one answer for a tensor -------------------------------------------------------------------
def _answer(dtype: VarType | None) -> Callable[[Infer], None]:
    def rule(ctx: Infer) -> None:
        ctx.set("Out", (1,), dtype, lod_level=0)

    return rule


def _reduced_rule(ctx: Infer) -> None:
    aligned(ctx.x("X").shape, ctx.x("Y").shape, ctx.attr("axis"), ctx.op.type)
    ctx.set("Out", (1,), VarType.BOOL, lod_level=0)


@op("equal_reduce", infer=_reduced_rule, lod=None)
def equal_reduce(xp: Array, X: Array, Y: Array, axis: int) -> Array:
    """Whether all elements are equal, Y broadcast as in elementwise operators."""
    return xp.equal(*fitted(X, Y, axis)).all().reshape(1)


@op("is_empty", infer=_answer(VarType.BOOL), lod=None)
def is_empty(xp: Array, X: Array) -> Array:
    return xp.full(1, X.size == 0)


@op("isfinite", infer=_answer(None), grad=no_gradient, lod=None)
def isfinite(xp: Array, X: Array, out_dtype: str) -> Array:
    return xp.isfinite(X).all().reshape(1).astype(out_dtype)


@op("isinf", infer=_answer(None), grad=no_gradient, lod=None)
def isinf(xp: Array, X: Array, out_dtype: str) -> Array:
    return xp.isinf(X).any().reshape(1).astype(out_dtype)


@op("isnan", infer=_answer(None), grad=no_gradient, lod=None)
def isnan(xp: Array, X: Array, out_dtype: str) -> Array:
    return xp.isnan(X).any().reshape(1).astype(out_dtype)


@op("allclose", infer=_answer(VarType.BOOL), lod=None)
def allclose(
    xp: Array, Input: Array, Other: Array, rtol: float, atol: float, equal_nan: bool
) -> Array:
    return xp.asarray(xp.allclose(Input, Other, rtol, atol, equal_nan)).reshape(1)


# -- facts about shapes ------------------------------------------------------------------------
def _shape_rule(ctx: Infer) -> None:
    ctx.set("Out", (len(ctx.x("Input").shape),), VarType.INT32, lod_level=0)


@op("shape", infer=_shape_rule, lod=None)
def shape(xp: Array, Input: Array) -> Array:
    size = Input.shape if hasattr(Input, "shape") else (Input.height, *Input.value.shape[1:])
    return xp.array(size, dtype=xp.int32)


@op("size", infer=_answer(VarType.INT64), lod=None)
def size(xp: Array, Input: Array) -> Array:
    return xp.full(1, Input.size, dtype=xp.int64)
