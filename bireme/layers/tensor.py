"""Layers that make tensors: constants, copies, casts, parameters and global variables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument, WrongType
from bireme.initializer import Constant
from bireme.ir import Variable, VarType, to_dtype
from bireme.param_attr import ParamAttr

from .helper import LayerHelper
from .single import append, checked

__all__ = [
    "assign",
    "cast",
    "concat",
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "fill_constant",
    "fill_constant_batch_size_like",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


Sizes = Sequence[Any] | Variable


# -- constants ---------------------------------------------------------------------------------
def fill_constant(
    shape: Sizes, dtype: Any, value: Any, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """A tensor full of `value`; sizes and value may be variables."""
    kind = to_dtype(dtype)
    attrs: dict[str, Any] = {"force_cpu": force_cpu, "dtype": int(kind)}
    inputs: dict[str, Any] = {}
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs["value"] = float(value)
        whole = kind in (VarType.INT32, VarType.INT64)
        attrs["str_value"] = str(int(value)) if whole else str(float(value))
    helper = LayerHelper("fill_constant")
    if out is None:
        out = helper.create_variable_for_type_inference(kind)
    sized(inputs, attrs, shape, "shape", "ShapeTensor", "ShapeTensorList", None)
    helper.append_op(type="fill_constant", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    out.stop_gradient = True
    return out


def sized(
    inputs: dict[str, Any],
    attrs: dict[str, Any],
    sizes: Sizes,
    attr: str,
    tensor_slot: str,
    list_slot: str,
    helper: LayerHelper | None,
) -> None:
    """Sizes as Fluid passes them: one tensor, or the attribute, with -1 for variables in a list.

    Numbers beside variables become constants of `helper`, or of a fill_constant layer.
    """
    if isinstance(sizes, Variable):
        sizes.stop_gradient = True
        inputs[tensor_slot] = sizes
        return
    try:
        attrs[attr] = [-1 if isinstance(n, Variable) else int(n) for n in sizes]
    except (TypeError, ValueError):
        raise WrongType(f"{attr} must be whole numbers and variables, got {sizes!r}") from None
    if any(isinstance(n, Variable) for n in sizes):
        inputs[list_slot] = [_as_tensor(n, helper) for n in sizes]


def _as_tensor(size: Any, helper: LayerHelper | None) -> Variable:
    if isinstance(size, Variable):
        size.stop_gradient = True
        return size
    if helper is None:
        return fill_constant([1], "int32", size, force_cpu=True)
    out = helper.create_variable_for_type_inference("int32")
    return fill_constant([1], "int32", size, force_cpu=True, out=out)


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """A tensor full of `value` whose dimension `output_dim_idx` is as large as one of `input`."""
    kind = to_dtype(dtype)
    whole = kind in (VarType.INT32, VarType.INT64)
    attrs = {
        "shape": list(shape),
        "dtype": int(kind),
        "value": float(value),
        "str_value": str(int(value)) if whole else str(float(value)),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
        "force_cpu": force_cpu,
    }
    return append(
        "fill_constant_batch_size_like", {"Input": input}, attrs, dtype=kind, stop_gradient=True
    )


def zeros(shape: Sizes, dtype: Any, force_cpu: bool = False) -> Variable:
    """A tensor of zeros."""
    return fill_constant(shape, dtype, 0.0, force_cpu)


def ones(shape: Sizes, dtype: Any, force_cpu: bool = False) -> Variable:
    """A tensor of ones."""
    return fill_constant(shape, dtype, 1.0, force_cpu)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Zeros in the shape of `x`."""
    return append("fill_zeros_like", {"X": x}, layer="zeros_like", out=out, stop_gradient=True)


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Ones in the shape of `x`."""
    return append("fill_any_like", {"X": x}, {"value": 1.0}, layer="ones_like", out=out)


# -- copies ------------------------------------------------------------------------------------
def cast_attrs(x: Variable, dtype: Any) -> dict[str, int]:
    """The attributes of a cast of `x`."""
    if x.dtype is None:
        raise InvalidArgument(f"cast: variable {x.name!r} has no dtype yet")
    return {"in_dtype": int(x.dtype), "out_dtype": int(to_dtype(dtype))}


def cast(x: Variable, dtype: Any) -> Variable:
    """x with elements of another type."""
    attrs = cast_attrs(checked(x, "cast", "x"), dtype)
    return append("cast", {"X": x}, attrs, dtype=to_dtype(dtype), stop_gradient=x.stop_gradient)


_VALUES = {
    VarType.FP32: "fp32_values",
    VarType.INT32: "int32_values",
    VarType.INT64: "int64_values",
    VarType.BOOL: "bool_values",
}
_LIMIT = 1024 * 1024


def assign(input: Any, output: Variable | None = None) -> Variable:
    """A copy of a variable, or a variable with the values of an array, into `output` if it is
    given.
    """
    if isinstance(input, Variable):
        return append("assign", {"X": input}, out=output)
    array = np.asarray(input)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    kind = to_dtype(array.dtype)
    slot = _VALUES.get(kind)
    if slot is None:
        raise InvalidArgument(f"assign: arrays of {array.dtype} cannot be stored in a program")
    if array.size > _LIMIT:
        raise InvalidArgument(
            f"assign: {array.size} elements do not belong in a program",
            hint="feed the array, or use a parameter with NumpyArrayInitializer",
        )
    values = array.reshape(-1).astype(int if kind == VarType.BOOL else array.dtype).tolist()
    helper = LayerHelper("assign")
    if output is None:
        output = helper.create_variable_for_type_inference(kind)
    attrs = {"dtype": int(kind), "shape": list(array.shape), slot: values}
    helper.append_op(type="assign_value", outputs={"Out": output}, attrs=attrs)
    return output


def array_of(x: Any) -> Variable | None:
    """The array of tensors that `x` is, alone or as a list of one; None if it is none."""
    (only,) = x if isinstance(x, list | tuple) and len(x) == 1 else (x,)
    found = isinstance(only, Variable) and only.type == VarType.LOD_TENSOR_ARRAY
    return only if found else None


def joined_array(
    array: Variable, axis: int, layer: str, *, stacked: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """The elements of an array joined along `axis` (or stacked), and their sizes there."""
    helper = LayerHelper(layer, name=name)
    out = helper.create_variable_for_type_inference(array.dtype)
    sizes = helper.create_variable_for_type_inference("int32")
    helper.append_op(
        type="tensor_array_to_tensor",
        inputs={"X": array},
        outputs={"Out": [out], "OutIndex": [sizes]},
        attrs={"axis": axis, "use_stack": stacked},
    )
    return out, sizes


def concat(
    input: Sequence[Variable] | Variable, axis: Any = 0, name: str | None = None
) -> Variable:
    """Tensors, or the elements of an array of tensors, put one after the other along `axis`."""
    array = array_of(input)
    if array is not None:
        return joined_array(array, axis, "concat", name=name)[0]
    inputs: dict[str, Any] = {"X": input}
    attrs = {}
    if isinstance(axis, Variable):
        inputs["AxisTensor"] = axis
    else:
        attrs["axis"] = axis
    return append("concat", inputs, attrs, name=name)


# -- variables ---------------------------------------------------------------------------------
def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """An empty variable, for layers that write into one."""
    helper = LayerHelper("create_tensor", name=name)
    return helper.create_variable(name=helper.name, dtype=dtype, persistable=persistable)


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """A variable of the global block, which the startup program fills with `value`."""
    helper = LayerHelper("global_var", name=name)
    block = helper.main_program.global_block()
    var = block.create_var(
        name=name, dtype=dtype, shape=shape, persistable=persistable, stop_gradient=True
    )
    helper.set_variable_initializer(var, Constant(float(value), force_cpu=force_cpu))
    return var


def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: str | None = None,
    attr: Any = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Any:
    """A parameter that belongs to no layer.

    It is called `name`; where an `attr` without a name is given, `name.w_0` or `name.b_0`.
    """
    helper = LayerHelper("create_parameter", name=name)
    if attr is None:
        attr = ParamAttr(name=name)
    return helper.create_parameter(attr, shape, dtype, is_bias, default_initializer)
