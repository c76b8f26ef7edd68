"""Arrays of tensors and rank tables as layers, and splitting a batch by a mask."""

from typing import Any

from bireme.errors import WrongType
from bireme.ir import Variable, VarType, unique_name

from .helper import LayerHelper
from .single import append, checked
from .tensor import joined_array

__all__ = [
    "array_length",
    "array_read",
    "array_to_lod_tensor",
    "array_write",
    "create_array",
    "is_empty",
    "lod_rank_table",
    "lod_tensor_to_array",
    "max_sequence_len",
    "merge_lod_tensor",
    "reorder_lod_tensor_by_rank",
    "shrink_memory",
    "split_lod_tensor",
    "tensor_array_to_tensor",
]

_ARRAY = VarType.LOD_TENSOR_ARRAY


def _is_array(array: Any, layer: str) -> Variable:
    if isinstance(array, Variable) and array.type == _ARRAY:
        return array
    raise WrongType(
        f"{layer} needs an array of tensors", hint="array = layers.create_array('float32')"
    )


def create_array(dtype: Any) -> Variable:
    """An empty array of tensors; `array_write` fills it."""
    helper = LayerHelper("array")
    return helper.create_variable(name=f"{helper.name}.out", type=_ARRAY, dtype=dtype)


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Write `x` as element `i` of `array` (a new one by default), and return the array."""
    checked(x, "array_write", "x")
    helper = LayerHelper("array_write")
    if array is None:
        array = helper.create_variable(name=f"{helper.name}.out", type=_ARRAY, dtype=x.dtype)
    _is_array(array, "array_write")
    helper.append_op(type="write_to_array", inputs={"X": [x], "I": [i]}, outputs={"Out": [array]})
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """Element `i` of `array`."""
    inputs = {"X": [_is_array(array, "array_read")], "I": [i]}
    return append("read_from_array", inputs, layer="array_read", dtype=array.dtype)


def array_length(array: Variable) -> Variable:
    """How many elements `array` has."""
    inputs = {"X": [_is_array(array, "array_length")]}
    return append(
        "lod_array_length", inputs, layer="array_length", dtype="int64", stop_gradient=True
    )


def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """The elements joined along `axis` (or stacked), and their sizes there."""
    array = _is_array(input, "the layer")
    return joined_array(array, axis, "tensor_array_to_tensor", stacked=use_stack, name=name)


# -- rank tables ------------------------------------------------------------------------------
def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """The sequences of `x` by falling length."""
    helper = LayerHelper("lod_rank_table")
    name = unique_name.generate("lod_rank_table")
    table = helper.create_variable(type=VarType.LOD_RANK_TABLE, name=name)
    helper.append_op(
        type="lod_rank_table", inputs={"X": x}, outputs={"Out": table}, attrs={"level": level}
    )
    return table


def max_sequence_len(rank_table: Variable) -> Variable:
    """The length of the longest sequence."""
    inputs = {"RankTable": rank_table}
    return append("max_sequence_len", inputs, layer="max_seqence_len", dtype="int64")


def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """An array whose element t holds step t of every sequence, longest sequence first."""
    helper = LayerHelper("lod_tensor_to_array")
    name = unique_name.generate("lod_tensor_to_array")
    array = helper.create_variable(name=name, type=_ARRAY, dtype=x.dtype)
    helper.append_op(
        type="lod_tensor_to_array",
        inputs={"X": x, "RankTable": table},
        outputs={"Out": array},
    )
    return array


def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """The sequences that `lod_tensor_to_array` took apart."""
    inputs = {"X": _is_array(x, "array_to_lod_tensor"), "RankTable": table}
    return append("array_to_lod_tensor", inputs, dtype=x.dtype)


def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """The rows of `x` whose sequences are still running at step `i`."""
    inputs = {"X": [x], "I": [i], "RankTable": [table]}
    return append("shrink_rnn_memory", inputs, layer="shrink_memory")


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """The sequences (or rows) of `x` in the order of the table."""
    inputs = {"X": [checked(x, "reorder_lod_tensor_by_rank", "x")], "RankTable": [rank_table]}
    return append("reorder_lod_tensor_by_rank", inputs)


# -- masks ------------------------------------------------------------------------------------
def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """The rows (or sequences) for which `mask` holds, and the others."""
    helper = LayerHelper("split_lod_tensor")
    when_true = helper.create_variable_for_type_inference(input.dtype)
    when_false = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="split_lod_tensor",
        inputs={"X": input, "Mask": mask},
        outputs={"OutTrue": when_true, "OutFalse": when_false},
        attrs={"level": level},
    )
    return when_true, when_false


def merge_lod_tensor(
    in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0
) -> Variable:
    """What `split_lod_tensor` took apart, in the order of `mask`."""
    inputs = {"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}
    return append("merge_lod_tensor", inputs, {"level": level}, dtype=in_true.dtype)


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Whether `x` has no elements."""
    inputs = {"X": [checked(x, "is_empty", "x")]}
    return append("is_empty", inputs, dtype="bool", out=cond, stop_gradient=True)
