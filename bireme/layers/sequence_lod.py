"""Layers over sequences: what rearranges, pools, pads or convolves rows grouped by a LoD."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, several, to_dtype

from .helper import LayerHelper
from .single import append, checked

__all__ = [
    "im2sequence",
    "lod_append",
    "lod_reset",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
]

_POOLS = ("SUM", "AVERAGE", "SQRT", "MAX", "LAST", "FIRST")


def sequence_pool(
    input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0
) -> Variable:
    """One row per sequence: its sum, average, sqrt, max, last or first row."""
    checked(input, "sequence_pool", "input")
    kind = pool_type.upper()
    if kind not in _POOLS:
        raise InvalidArgument(
            f"pool_type {pool_type!r} is not known", hint=f"one of {', '.join(_POOLS)}".lower()
        )
    helper = LayerHelper("sequence_pool")
    out = helper.create_variable_for_type_inference(input.dtype)
    index = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="sequence_pool",
        inputs={"X": input},
        outputs={"Out": out, "MaxIndex": index},
        attrs={"pooltype": kind, "is_test": is_test, "pad_value": pad_value},
    )
    if kind == "MAX":
        index.stop_gradient = True
    return out


def sequence_first_step(input: Variable) -> Variable:
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """The softmax over each sequence of numbers."""
    return append("sequence_softmax", {"X": checked(input, "sequence_softmax", "input")}, name=name)


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """A convolution of `filter_size` rows along each sequence, beyond whose ends are zeros.

    The window of a row begins `padding_start` rows from it (default: it is centred).
    """
    helper = LayerHelper("sequence_conv", **locals())
    checked(input, "sequence_conv", "input")
    if filter_stride != 1:
        raise InvalidArgument("sequence_conv has stride 1 only")
    dtype = helper.input_dtype()
    weight = helper.create_parameter(
        helper.param_attr, [filter_size * input.shape[1], num_filters], dtype
    )
    out = helper.create_variable_for_type_inference(dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    helper.append_op(
        type="sequence_conv",
        inputs={"X": [input], "Filter": [weight]},
        outputs={"Out": out},
        attrs={"contextStride": 1, "contextStart": start, "contextLength": filter_size},
    )
    return helper.append_activation(helper.append_bias_op(out))


def row_conv(
    input: Variable, future_context_size: int, param_attr: Any = None, act: Any = None
) -> Variable:
    """Each row plus weighted rows of the future."""
    helper = LayerHelper("row_conv", **locals())
    checked(input, "row_conv", "input")
    dtype = helper.input_dtype()
    weight = helper.create_parameter(
        helper.param_attr, [future_context_size + 1, input.shape[-1]], dtype
    )
    out = helper.create_variable_for_type_inference(dtype)
    inputs = {"X": [input], "Filter": [weight]}
    helper.append_op(type="row_conv", inputs=inputs, outputs={"Out": [out]})
    return helper.append_activation(out)


def im2sequence(
    input: Variable,
    filter_size: Any = 1,
    stride: Any = 1,
    padding: Any = 0,
    input_image_size: Variable | None = None,
    out_stride: Any = 1,
    name: str | None = None,
) -> Variable:
    """Each image as the sequence of its windows."""
    sides = _repeated(padding, 2)
    attrs = {
        "kernels": _repeated(filter_size, 2),
        "strides": _repeated(stride, 2),
        "paddings": sides if len(sides) == 4 else [*sides, *sides],
    }
    inputs: dict[str, Any] = {"X": checked(input, "im2sequence", "input")}
    if input_image_size is not None:
        inputs["Y"] = input_image_size
    attrs["out_stride"] = _repeated(out_stride, 2)
    return append("im2sequence", inputs, attrs, name=name)


def _repeated(value: Any, count: int) -> list[int]:
    return list(value) if isinstance(value, list | tuple) else [int(value)] * count


# -- between sequences ------------------------------------------------------------------------
def sequence_expand(
    x: Variable, y: Variable, ref_level: int = -1, name: str | None = None
) -> Variable:
    """Each sequence of `x` as often as the sequence of `y` at `ref_level` is long."""
    inputs = {"X": checked(x, "sequence_expand", "x"), "Y": y}
    return append("sequence_expand", inputs, {"ref_level": ref_level}, name=name)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Each row of `x` as often as the sequence of `y` is long."""
    inputs = {"X": checked(x, "sequence_expand_as", "x"), "Y": y}
    return append("sequence_expand_as", inputs, name=name)


def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """The sequences of all inputs, each joined with its like."""
    xs = several(input)
    inputs = {"X": [checked(x, "sequence_concat", "input") for x in xs]}
    return append("sequence_concat", inputs, name=name, dtype=xs[0].dtype)


def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """Rows of width `new_dim`; each sequence keeps its numbers."""
    inputs = {"X": [checked(input, "sequence_reshape", "input")]}
    return append("sequence_reshape", inputs, {"new_dim": new_dim})


def sequence_slice(
    input: Variable, offset: Variable, length: Variable, name: str | None = None
) -> Variable:
    """`length` rows of each sequence, from its row `offset`."""
    checked(input, "sequence_slice", "input")
    offset.stop_gradient = True
    length.stop_gradient = True
    inputs = {"X": input, "Offset": offset, "Length": length}
    return append("sequence_slice", inputs, name=name)


def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """Each sequence from its end to its beginning."""
    return append(
        "sequence_reverse", {"X": checked(x, "sequence_reverse", "x")}, name=name, slot="Y"
    )


def sequence_scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """Row i of `input` plus the updates of sequence i, in the columns that `index` names."""
    inputs = {
        "X": checked(input, "sequence_scatter", "input"),
        "Ids": index,
        "Updates": updates,
    }
    return append("sequence_scatter", inputs, name=name)


def sequence_enumerate(
    input: Variable, win_size: int, pad_value: int = 0, name: str | None = None
) -> Variable:
    """Each id with the `win_size - 1` ids that follow it."""
    inputs = {"X": checked(input, "sequence_enumerate", "input")}
    attrs = {
        "win_size": win_size,
        "pad_value": pad_value,
        "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True,
    }
    return append("sequence_enumerate", inputs, attrs, name=name, stop_gradient=True)


# -- sequences and rectangles -----------------------------------------------------------------
def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """(sequence, step, ...) filled up with `pad_value`, and the lengths."""
    checked(x, "sequence_pad", "x")
    helper = LayerHelper("sequence_pad", name=name)
    out = helper.create_variable_for_type_inference(x.dtype)
    length = helper.create_variable_for_type_inference("int64")
    pad_value.stop_gradient = True
    length.stop_gradient = True
    helper.append_op(
        type="sequence_pad",
        inputs={"X": x, "PadValue": pad_value},
        outputs={"Out": out, "Length": length},
        attrs={"padded_length": -1 if maxlen is None else maxlen},
    )
    return out, length


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """The first `length` steps of each row of `x`, as sequences."""
    length.stop_gradient = True
    inputs = {"X": checked(x, "sequence_unpad", "x"), "Length": length}
    return append("sequence_unpad", inputs, name=name)


def sequence_mask(
    x: Variable, maxlen: Any = None, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """Ones in the first `x` places of `maxlen` (default: of the largest), then zeros."""
    inputs: dict[str, Any] = {"X": [checked(x, "sequence_mask", "x")]}
    attrs = {"out_dtype": int(to_dtype(dtype))}
    if isinstance(maxlen, Variable):
        inputs["MaxLenTensor"] = maxlen
    else:
        attrs["maxlen"] = -1 if maxlen is None else maxlen
    return append(
        "sequence_mask", inputs, attrs, name=name, slot="Y", dtype=dtype, stop_gradient=True
    )


# -- LoD --------------------------------------------------------------------------------------
def lod_reset(
    x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None
) -> Variable:
    """`x` with the sequences of `y` (or whose offsets `y` holds), or those of `target_lod`."""
    checked(x, "lod_reset", "x")
    if y is not None:
        return append("lod_reset", {"X": x, "Y": y})
    if target_lod is None:
        raise InvalidArgument("lod_reset needs y or target_lod")
    return append("lod_reset", {"X": x}, {"target_lod": list(target_lod)})


def lod_append(x: Variable, level: Any) -> Variable:
    """`x` with one more, innermost level of sequences."""
    checked(x, "lod_append", "x")
    if isinstance(level, Variable):
        attrs: dict[str, Any] = {"append": True}
        return append("lod_reset", {"X": x, "Y": level}, attrs, layer="lod_append")
    attrs = {"append": True, "target_lod": list(level)}
    return append("lod_reset", {"X": x}, attrs, layer="lod_append")
