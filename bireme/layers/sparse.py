"""Layers over tables of rows: embeddings, and the way from selected rows to tensors."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .single import append, checked

__all__ = ["embedding", "get_tensor_from_selected_rows", "merge_selected_rows"]


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """The rows of a [rows, width] table that ids name; ids end in a dimension of 1.

    With `is_sparse` the gradient holds only the rows that were read, and parameter servers hand
    out single rows; with `is_distributed` no trainer ever holds the table. Row `padding_idx` reads
    as zeros and learns nothing; negative values count from the end.
    """
    return table_rows(
        "lookup_table", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype
    )


def table_rows(
    type: str,
    input: Variable,
    size: Sequence[int],
    is_sparse: bool,
    is_distributed: bool,
    padding_idx: int | None,
    param_attr: Any,
    dtype: Any,
) -> Variable:
    """The embedding layer over one of the two look-up operators."""
    helper = LayerHelper("embedding", input=input, param_attr=param_attr)
    ids = checked(input, "embedding", "input")
    if ids.dtype not in (VarType.INT64, VarType.INT32):
        raise InvalidArgument(
            f"embedding: ids must be int64, {ids.name!r} is {ids.numpy_dtype}",
            hint="use layers.cast(ids, 'int64')",
        )
    if len(size) != 2:
        raise InvalidArgument(f"embedding: size must be [rows, width], got {list(size)}")
    table = helper.create_parameter(helper.param_attr, size, dtype)
    rows = helper.create_variable_for_type_inference(table.dtype)
    padding = -1 if padding_idx is None else padding_idx
    if not -size[0] <= padding < size[0]:
        raise InvalidArgument(f"embedding: padding_idx {padding} is not among {size[0]} rows")
    if padding_idx is not None and padding < 0:
        padding += size[0]
    helper.append_op(
        type=type,
        inputs={"Ids": ids, "W": table},
        outputs={"Out": rows},
        attrs={
            "is_sparse": is_sparse,
            "is_distributed": is_distributed,
            "remote_prefetch": is_sparse and not is_distributed,
            "padding_idx": padding,
        },
    )
    return rows


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Selected rows with each row once, equal rows added."""
    return append("merge_selected_rows", {"X": x}, name=name)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """The values of selected rows as a tensor: one line per selected row, not per row of the
    table.
    """
    return append("get_tensor_from_selected_rows", {"X": x}, name=name)
