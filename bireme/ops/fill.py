"""Operators that make tensors from numbers: constants, ranges, and tensors like another."""

from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType, grad_name, numpy_name

from .shapes import same_as
from .table import Infer, OpSpec, no_gradient, op


def numbers(tensor: Array) -> list[int]:
    """The elements of a small tensor as whole numbers."""
    return [int(n) for n in to_host(tensor).reshape(-1)]


def given_sizes(attr: Sequence[int], tensor: Array, parts: Sequence[Array] | None) -> list[int]:
    """Sizes from an attribute, unless one tensor or a list of them gives them."""
    if tensor is not None:
        return numbers(tensor)
    return [n for part in parts for n in numbers(part)] if parts else list(attr)


# -- fill_constant and its kin -----------------------------------------------------------------
def _constant_rule(ctx: Infer) -> None:
    shape = list(ctx.attr("shape") or ())
    tensor = ctx.input("ShapeTensor")
    if tensor is not None and not shape:
        shape = [-1] * max(tensor.shape[0] if tensor.shape else 1, 1)
    ctx.set("Out", shape, VarType(ctx.attr("dtype")), lod_level=0)


@op("fill_constant", infer=_constant_rule, lod=None)
def fill_constant(
    xp: Array,
    ShapeTensor: Array,
    ShapeTensorList: list[Array] | None,
    ValueTensor: Array,
    shape: Sequence[int],
    dtype: int,
    value: float,
    str_value: str,
    out: Array = None,
) -> Array:
    kind = numpy_name(VarType(dtype))
    if ShapeTensor is not None or ShapeTensorList:
        out = None
    if out is None:
        out = xp.empty(given_sizes(shape, ShapeTensor, ShapeTensorList), dtype=kind)
    out[...] = _value(kind, value, str_value) if ValueTensor is None else ValueTensor.reshape(())
    return out


def _value(kind: str, value: float, text: str | None) -> Any:
    """The text is exact where the float is not: large whole numbers."""
    if kind == "int64" and text:
        return int(float(text)) if "." in text or "e" in text else int(text)
    return value if kind.startswith("float") else int(value)


def _batch_rule(ctx: Infer) -> None:
    """The shape given, with one dimension of the input's."""
    like = ctx.x("Input")
    shape = list(ctx.attr("shape"))
    shape[ctx.attr("output_dim_idx") or 0] = like.shape[ctx.attr("input_dim_idx") or 0]
    dtype = ctx.attr("dtype")
    ctx.set("Out", shape, VarType(VarType.FP32 if dtype is None else dtype), lod_level=0)


@op("fill_constant_batch_size_like", infer=_batch_rule, grad=no_gradient, lod=None)
def fill_constant_batch_size_like(
    xp: Array,
    Input: Array,
    Input_lod: tuple[Array, ...],
    shape: Sequence[int],
    dtype: int | None,
    value: float | None,
    str_value: str | None,
    input_dim_idx: int | None,
    output_dim_idx: int | None,
) -> Array:
    sizes = list(shape)
    at = input_dim_idx or 0
    batch = len(Input_lod[0]) - 1 if Input_lod and at == 0 else Input.shape[at]
    sizes[output_dim_idx or 0] = batch
    kind = numpy_name(VarType(VarType.FP32 if dtype is None else dtype))
    return xp.full(sizes, _value(kind, value or 0.0, str_value), dtype=kind)


def _like_rule(ctx: Infer) -> None:
    dtype = ctx.attr("dtype")
    chosen = None if dtype is None or dtype < 0 else VarType(dtype)
    ctx.set("Out", like=ctx.x("X"), dtype=chosen)


@op("fill_any_like", infer=_like_rule, grad=no_gradient)
def fill_any_like(xp: Array, X: Array, dtype: int, value: float) -> Array:
    kind = X.dtype if dtype < 0 else numpy_name(VarType(dtype))
    return xp.full(X.shape, value, dtype=kind)


@op("fill_zeros_like", infer=same_as("X"), grad=no_gradient)
def fill_zeros_like(xp: Array, X: Array) -> Array:
    return xp.zeros(X.shape, dtype=X.dtype)


@op("fill_zeros_like2", infer=_like_rule, grad=no_gradient)
def fill_zeros_like2(xp: Array, X: Array, dtype: int) -> Array:
    return xp.zeros(X.shape, dtype=numpy_name(VarType(dtype)))


def _declared_rule(ctx: Infer) -> None:
    ctx.set("Out", ctx.attr("shape"), VarType(ctx.attr("dtype")), lod_level=0)


@op("assign_value", infer=_declared_rule, lod=None)
def assign_value(
    xp: Array,
    shape: Sequence[int],
    dtype: int,
    bool_values: Sequence[int] | None,
    fp32_values: Sequence[float] | None,
    int32_values: Sequence[int] | None,
    int64_values: Sequence[int] | None,
) -> Array:
    values = fp32_values or int32_values or int64_values or bool_values or ()
    return xp.array(values, dtype=numpy_name(VarType(dtype))).reshape(shape)


@op("fill", infer=_declared_rule, lod=None)
def fill(xp: Array, shape: Sequence[int], dtype: int, value: Sequence[float]) -> Array:
    return xp.array(value, dtype=numpy_name(VarType(dtype))).reshape(shape)


# -- ranges and patterns -----------------------------------------------------------------------
def _unknown_length(ctx: Infer) -> None:
    like = ctx.input("Start")
    ctx.set("Out", (-1,), None if like is None else like.dtype, lod_level=0)


@op("range", infer=_unknown_length, lod=None)
def range_(xp: Array, Start: Array, End: Array, Step: Array) -> Array:
    start, end, step = (to_host(t).reshape(-1)[0] for t in (Start, End, Step))
    if step == 0 or (end - start) * step < 0:
        raise InvalidArgument(f"range: no way from {start} to {end} in steps of {step}")
    return xp.arange(start, end, step, dtype=Start.dtype)


@op("linspace", infer=_unknown_length, lod=None)
def linspace(xp: Array, Start: Array, Stop: Array, Num: Array) -> Array:
    start, stop = (to_host(t).reshape(-1)[0] for t in (Start, Stop))
    return xp.linspace(start, stop, numbers(Num)[0], dtype=Start.dtype)


def _eye_rule(ctx: Infer) -> None:
    rows, columns = ctx.attr("num_rows"), ctx.attr("num_columns")
    ctx.set("Out", (rows, rows if columns in (None, -1) else columns), VarType(ctx.attr("dtype")))


@op("eye", infer=_eye_rule, lod=None)
def eye(xp: Array, num_rows: int, num_columns: int | None, dtype: int) -> Array:
    columns = num_rows if num_columns in (None, -1) else num_columns
    return xp.eye(num_rows, columns, dtype=numpy_name(VarType(dtype)))


def _diag_rule(ctx: Infer) -> None:
    x = ctx.x("Diagonal")
    ctx.set("Out", (x.shape[0], x.shape[0]), like=x)


@op("diag", infer=_diag_rule, lod=None)
def diag(xp: Array, Diagonal: Array) -> Array:
    return xp.diag(Diagonal)


# -- copies ------------------------------------------------------------------------------------
def _assign_gradient(op: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": [grad_name(n) for n in op.output("Out")]}
    return [OpSpec("assign", inputs, {"Out": [grad_name(n) for n in op.input("X")]}, op.attrs)]


@op("assign", infer=same_as("X"), grad=_assign_gradient)
def assign(xp: Array, X: Array) -> Array:
    return X.copy()
