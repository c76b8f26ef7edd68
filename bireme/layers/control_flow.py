"""Control flow as layers: branches, loops, recurrences, counters."""

from bireme.ir import Variable

from .arrays import (
    array_length,
    array_read,
    array_to_lod_tensor,
    array_write,
    create_array,
    is_empty,
    lod_rank_table,
    lod_tensor_to_array,
    max_sequence_len,
    merge_lod_tensor,
    reorder_lod_tensor_by_rank,
    shrink_memory,
    split_lod_tensor,
    tensor_array_to_tensor,
)
from .branches import ConditionalBlock, IfElse, Switch, case, cond, switch_case
from .dynamic_rnn import DynamicRNN
from .helper import LayerHelper
from .loops import While, while_loop
from .recurrence import StaticRNN

__all__ = [
    "ConditionalBlock",
    "DynamicRNN",
    "IfElse",
    "StaticRNN",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_to_lod_tensor",
    "array_write",
    "case",
    "cond",
    "create_array",
    "increment",
    "is_empty",
    "lod_rank_table",
    "lod_tensor_to_array",
    "max_sequence_len",
    "merge_lod_tensor",
    "reorder_lod_tensor_by_rank",
    "shrink_memory",
    "split_lod_tensor",
    "switch_case",
    "tensor_array_to_tensor",
    "while_loop",
]


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """`x + value`, by default written to `x` itself."""
    helper = LayerHelper("increment")
    out = x if in_place else helper.create_variable_for_type_inference(x.dtype)
    attrs = {"step": float(value)}
    helper.append_op(type="increment", inputs={"X": [x]}, outputs={"Out": [out]}, attrs=attrs)
    return out
