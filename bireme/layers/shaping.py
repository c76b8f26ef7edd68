"""Layers that lay tensors out anew, take them apart, put them together and cut parts out of
them.
"""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, several

from .helper import LayerHelper
from .single import append, checked
from .tensor import Sizes, array_of, joined_array, sized

__all__ = [
    "crop",
    "crop_tensor",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "meshgrid",
    "multiplex",
    "pad",
    "pad2d",
    "pad_constant_like",
    "reshape",
    "reverse",
    "roll",
    "slice",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "unstack",
]


def _with_memory(
    type: str,
    layer: str,
    inputs: dict[str, Any],
    attrs: dict[str, Any],
    name: str | None,
    helper: LayerHelper | None = None,
    out: Variable | None = None,
) -> Variable:
    """An operator that also writes XShape for its gradient."""
    x = checked(inputs["X"], layer, "x")
    helper = helper or LayerHelper(layer, name=name)
    if out is None:
        out = helper.create_variable_for_type_inference(x.dtype)
    memory = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type=type, inputs=inputs, outputs={"Out": out, "XShape": memory}, attrs=attrs)
    return out


# -- layout ------------------------------------------------------------------------------------
def reshape(
    x: Variable,
    shape: Sizes,
    actual_shape: Variable | None = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """x with another shape: 0 copies a dimension, one -1 takes what is left; sizes may be
    variables.
    """
    helper = LayerHelper("reshape2", act=act, name=name)
    inputs: dict[str, Any] = {"X": checked(x, "reshape", "x")}
    attrs: dict[str, Any] = {}
    sized(inputs, attrs, shape, "shape", "Shape", "ShapeTensor", helper)
    if isinstance(actual_shape, Variable):
        actual_shape.stop_gradient = True
        inputs["Shape"] = actual_shape
    out = _with_memory("reshape2", "reshape", inputs, attrs, None, helper, x if inplace else None)
    return helper.append_activation(out)


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """x with its dimensions in the order `perm`."""
    checked(x, "transpose", "x")
    if sorted(perm) != list(range(len(x.shape))):
        raise InvalidArgument(f"transpose: {list(perm)} does not reorder {list(x.shape)}")
    return _with_memory("transpose2", "transpose", {"X": x}, {"axis": list(perm)}, name)


def t(input: Variable, name: str | None = None) -> Variable:
    """The transpose of a matrix; a vector stays as it is."""
    if len(input.shape) > 2:
        raise InvalidArgument(f"t takes a matrix, got {list(input.shape)}; use transpose")
    if len(input.shape) < 2:
        return input
    return _with_memory("transpose2", "t", {"X": input}, {"axis": [1, 0]}, name)


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """input without the dimensions of size 1 at `axes`; without all of them if there are no
    axes.
    """
    return _with_memory("squeeze2", "squeeze", {"X": input}, {"axes": list(axes)}, name)


def unsqueeze(input: Variable, axes: Any, name: str | None = None) -> Variable:
    """input with new dimensions of size 1 at `axes`."""
    helper = LayerHelper("unsqueeze2", name=name)
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {}
    axes = [axes] if isinstance(axes, int) else axes
    if isinstance(axes, Variable) or not any(isinstance(a, Variable) for a in axes):
        sized(inputs, attrs, axes, "axes", "AxesTensor", "AxesTensorList", helper)
    else:
        both: dict[str, Any] = {}
        sized(inputs, both, axes, "axes", "AxesTensor", "AxesTensorList", helper)
    return _with_memory("unsqueeze2", "unsqueeze", inputs, attrs, name, helper)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """x as a matrix: the dimensions before `axis` become its rows."""
    if not 0 <= axis <= len(checked(x, "flatten", "x").shape):
        raise InvalidArgument(f"flatten: axis {axis} does not fit {list(x.shape)}")
    return _with_memory("flatten2", "flatten", {"X": x}, {"axis": axis}, name)


def expand(x: Variable, expand_times: Sizes, name: str | None = None) -> Variable:
    """x repeated so many times along each dimension."""
    helper = LayerHelper("expand", name=name)
    inputs: dict[str, Any] = {"X": checked(x, "expand", "x")}
    attrs: dict[str, Any] = {}
    sized(inputs, attrs, expand_times, "expand_times", "ExpandTimes", "expand_times_tensor", helper)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="expand", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """x repeated until it has the shape of `target_tensor`."""
    return append("expand_as", {"X": x, "target_tensor": target_tensor}, name=name)


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """x with the order along `axis` turned round."""
    axes = [axis] if isinstance(axis, int) else list(axis)
    return append("reverse", {"X": x}, {"axis": axes})


def flip(input: Variable, dims: int | Sequence[int], name: str | None = None) -> Variable:
    """input with the order along `dims` turned round."""
    return append(
        "flip", {"X": input}, {"dims": [dims] if isinstance(dims, int) else list(dims)}, name=name
    )


def roll(input: Variable, shifts: Any, dims: Any = None) -> Variable:
    """input moved along `dims`, what falls off coming in again; without dims, as one long row."""
    helper = LayerHelper("roll", **locals())
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else dims
    shape = input.shape
    if dims is None:
        dims = [0]
        input = reshape(input, [-1, 1])
    out = helper.create_variable_for_type_inference(input.dtype)
    attrs = {"dims": list(dims), "shifts": shifts}
    helper.append_op(type="roll", inputs={"X": input}, outputs={"Out": out}, attrs=attrs)
    return reshape(out, shape, inplace=True)


# -- together and apart ------------------------------------------------------------------------
def split(
    input: Variable, num_or_sections: Any, dim: Any = -1, name: str | None = None
) -> list[Variable]:
    """input in so many equal parts, or in parts of the given sizes, along `dim`."""
    helper = LayerHelper("split", name=name)
    inputs: dict[str, Any] = {"X": checked(input, "split", "input")}
    whole = isinstance(num_or_sections, int)
    attrs: dict[str, Any] = {"num": num_or_sections if whole else 0}
    if isinstance(dim, Variable):
        dim.stop_gradient = True
        inputs["AxisTensor"] = dim
    else:
        attrs["axis"] = dim + len(input.shape) if dim < 0 else dim
    if not whole:
        sized(inputs, attrs, num_or_sections, "sections", "", "SectionsTensorList", helper)
    count = num_or_sections if whole else len(num_or_sections)
    outs = [helper.create_variable_for_type_inference(input.dtype) for _ in range(count)]
    helper.append_op(type="split", inputs=inputs, outputs={"Out": outs}, attrs=attrs)
    return outs


def stack(x: Any, axis: int = 0) -> Variable:
    """Tensors of one shape, or the elements of an array of tensors, put together along a new
    dimension.
    """
    array = array_of(x)
    if array is not None:
        return joined_array(array, axis, "stack", stacked=True)[0]
    xs = x if isinstance(x, list | tuple) else [x]
    return append("stack", {"X": xs}, {"axis": axis}, slot="Y")


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The parts of x along `axis`, without that dimension."""
    count = checked(x, "unstack", "x").shape[axis] if num is None else num
    if count < 1:
        raise InvalidArgument(
            f"unstack: axis {axis} of {list(x.shape)} has no known size; give num"
        )
    return _parts("unstack", x, count, {"axis": axis, "num": count}, "Y")


def unbind(input: Variable, axis: int = 0) -> list[Variable]:
    """The parts of input along `axis`, without that dimension."""
    return _parts("unbind", input, input.shape[axis], {"axis": axis}, "Out")


def _parts(type: str, x: Variable, count: int, attrs: dict[str, Any], slot: str) -> list[Variable]:
    helper = LayerHelper(type)
    outs = [helper.create_variable_for_type_inference(x.dtype) for _ in range(count)]
    helper.append_op(type=type, inputs={"X": x}, outputs={slot: outs}, attrs=attrs)
    return outs


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Row i of the tensor that index[i] names."""
    return append("multiplex", {"X": inputs, "Ids": index})


def meshgrid(input: Sequence[Variable], name: str | None = None) -> list[Variable]:
    """Each vector spread over the grid that all of them span."""
    helper = LayerHelper("meshgrid", name=name)
    xs = several(input)
    outs = [helper.create_variable_for_type_inference(x.dtype) for x in xs]
    helper.append_op(type="meshgrid", inputs={"X": xs}, outputs={"Out": outs})
    return outs


# -- parts -------------------------------------------------------------------------------------
def slice(input: Variable, axes: Sequence[int], starts: Any, ends: Any) -> Variable:
    """What lies from `starts` to `ends` along `axes`; both may be variables or hold some."""
    return _cut("slice", input, list(axes), {"Starts": starts, "Ends": ends})


def strided_slice(
    input: Variable, axes: Sequence[int], starts: Any, ends: Any, strides: Any
) -> Variable:
    """What lies from `starts` to `ends` along `axes`, in steps of `strides`."""
    given = {"Starts": starts, "Ends": ends, "Strides": strides}
    return _cut("strided_slice", input, list(axes), given)


def _cut(type: str, input: Variable, axes: list[int], given: dict[str, Any]) -> Variable:
    helper = LayerHelper(type)
    inputs: dict[str, Any] = {"Input": checked(input, type, "input")}
    attrs: dict[str, Any] = {"axes": axes}
    known = [1] * len(axes)
    for slot, value in given.items():
        sized(inputs, attrs, value, slot.lower(), f"{slot}Tensor", f"{slot}TensorList", helper)
        if isinstance(value, Variable):
            known = [-1] * len(axes)
        else:
            known = [
                -1 if isinstance(n, Variable) else k for n, k in zip(value, known, strict=True)
            ]
    attrs["infer_flags"] = known
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type=type, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def crop(x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None) -> Variable:
    """The part of x that begins at `offsets` and has `shape`, or the shape of that variable."""
    inputs: dict[str, Any] = {"X": checked(x, "crop", "x")}
    attrs: dict[str, Any] = {}
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    else:
        attrs["shape"] = list(shape)
    if isinstance(offsets, Variable):
        inputs["Offsets"] = offsets
    else:
        attrs["offsets"] = list(offsets or [0] * len(x.shape))
    return append("crop", inputs, attrs, name=name)


def crop_tensor(
    x: Variable, shape: Any = None, offsets: Any = None, name: str | None = None
) -> Variable:
    """The part of x that begins at `offsets` and has `shape`; -1 means all that is left."""
    helper = LayerHelper("crop_tensor", name=name)
    inputs: dict[str, Any] = {"X": checked(x, "crop_tensor", "x")}
    attrs: dict[str, Any] = {}
    start = [0] * len(x.shape) if offsets is None else offsets
    sized(inputs, attrs, start, "offsets", "Offsets", "OffsetsTensor", helper)
    sized(inputs, attrs, shape, "shape", "Shape", "ShapeTensor", helper)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="crop_tensor", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out


def pad(
    x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """x with `paddings` (before, after, for each dimension) filled with a value."""
    attrs = {"paddings": list(paddings), "pad_value": float(pad_value)}
    return append("pad", {"X": x}, attrs, name=name)


def pad2d(
    input: Variable,
    paddings: Any = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Images with a border of (top, bottom, left, right): a value, the mirror image or the edge."""
    inputs: dict[str, Any] = {"X": input}
    attrs = {"mode": mode, "pad_value": float(pad_value), "data_format": data_format}
    if isinstance(paddings, Variable):
        inputs["Paddings"] = paddings
        attrs["paddings"] = []
    else:
        attrs["paddings"] = list(paddings)
    return append("pad2d", inputs, attrs, name=name)


def pad_constant_like(
    x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None
) -> Variable:
    """y, filled up behind with a value to the shape of x."""
    checked(x, "pad_constant_like", "x")
    helper = LayerHelper("pad_constant_like", name=name)
    out = helper.create_variable_for_type_inference(y.dtype)
    attrs = {"pad_value": float(pad_value)}
    inputs = {"X": x, "Y": y}
    helper.append_op(type="pad_constant_like", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return out
