"""Arrays of tensors: writing, reading, joining."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, LoDTensorArray
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType, grad_name

from .table import Infer, OpSpec, op


def _plain(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else value


def _lod(value: Any) -> tuple[Array, ...]:
    return value.offsets if isinstance(value, LoDTensor) else ()


def _with(array: Array, lod: tuple[Array, ...]) -> Any:
    return LoDTensor(array, lod) if lod else array


def _grads(names: list[str]) -> list[str]:
    return [grad_name(name) for name in names]


def _write_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x = operator.input("X")
    inputs = {"I": operator.input("I"), "X": _grads(operator.output("Out")), "X_W": x}
    return [OpSpec("read_from_array", inputs, {"Out": _grads(x)}, {})]


def _read_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    inputs = {"I": operator.input("I"), "X": _grads(operator.output("Out"))}
    return [OpSpec("write_to_array", inputs, {"Out": _grads(operator.input("X"))}, {})]


def _array_like(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"), type=VarType.LOD_TENSOR_ARRAY, lod_level=0)


def _element_like(ctx: Infer) -> None:
    like = ctx.input("X_W") or ctx.x("X")
    ctx.set("Out", like=like, type=VarType.LOD_TENSOR)


def _index(control: Any) -> int:
    return int(to_host(_plain(control.read("I"))).reshape(-1)[0])


@op("write_to_array", infer=_array_like, grad=_write_gradient, control=True)
def write_to_array(control: Any) -> None:
    """The array grows to hold index I; what lies between stays empty."""
    (name,) = control.op.output("Out")
    array = control.get(name)
    if array is None:
        array = LoDTensorArray()
    at = _index(control)
    while len(array) <= at:
        array.append(None)
    array[at] = control.read("X")
    control.set(name, array)


@op("read_from_array", infer=_element_like, grad=_read_gradient, control=True)
def read_from_array(xp: Array, control: Any) -> None:
    """An element that was never written reads as zeros where X_W says of what shape."""
    array, at = control.read("X"), _index(control)
    value = array[at] if array is not None and at < len(array) else None
    if value is None:
        like = control.read("X_W")
        if like is None:
            size = 0 if array is None else len(array)
            raise InvalidArgument(
                f"index {at} of array {control.op.input('X')[0]!r} was never written",
                where=f"the array has {size} elements",
            )
        value = _with(xp.zeros_like(_plain(like)), _lod(like))
    control.write("Out", value)


def _one_number(ctx: Infer) -> None:
    ctx.set("Out", (1,), VarType.INT64, lod_level=0)


@op("lod_array_length", infer=_one_number, control=True)
def lod_array_length(xp: Array, control: Any) -> None:
    array = control.read("X")
    control.write("Out", xp.asarray([0 if array is None else len(array)], dtype=np.int64))


def _joined_shape(ctx: Infer) -> None:
    x, axis = ctx.x("X"), ctx.attr("axis")
    shape = list(x.shape)
    if ctx.attr("use_stack"):
        shape.insert(axis, -1)
    elif shape:
        shape[axis] = -1
    ctx.set("Out", shape, like=x, type=VarType.LOD_TENSOR)
    ctx.set("OutIndex", dtype=VarType.INT32)


def _joined_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x = operator.input("X")
    inputs = {"X": x, "Out@GRAD": _grads(operator.output("Out"))}
    return [OpSpec("tensor_array_to_tensor_grad", inputs, {"X@GRAD": _grads(x)}, operator.attrs)]


@op(
    "tensor_array_to_tensor",
    infer=_joined_shape,
    grad=_joined_gradient,
    returns="Out OutIndex",
    lod=None,
)
def tensor_array_to_tensor(
    xp: Array, X: LoDTensorArray, axis: int, use_stack: bool
) -> tuple[Array, Array]:
    parts = [_plain(value) for value in X]
    sizes = [1 if use_stack else part.shape[axis] for part in parts]
    joined = xp.stack(parts, axis) if use_stack else xp.concatenate(parts, axis)
    return joined, xp.asarray(sizes, dtype=np.int32)


def _array_gradient_like(ctx: Infer) -> None:
    ctx.set("X@GRAD", like=ctx.x("X"), type=VarType.LOD_TENSOR_ARRAY)


@op(
    "tensor_array_to_tensor_grad",
    infer=_array_gradient_like,
    ins={"X": "", "Out@GRAD": ""},
    outs={"X@GRAD": ""},
    attrs={"axis": 0, "use_stack": False},
    lod=None,
)
def tensor_array_to_tensor_grad(
    xp: Array, X: LoDTensorArray, dOut: Array, axis: int, use_stack: bool
) -> LoDTensorArray:
    sizes = [1 if use_stack else _plain(part).shape[axis] for part in X]
    ends = np.cumsum(sizes)[:-1].tolist()
    parts = xp.split(dOut, ends, axis)
    return LoDTensorArray(part.squeeze(axis) if use_stack else part for part in parts)
