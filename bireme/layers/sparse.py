"""Layers over tables of rows: embeddings, and the way from selected rows to tensors."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import UniformInitializer
from bireme.ir import Variable

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

    A table of size [-1, width] has no number of rows: a row comes into being with its first
    gradient, and until then reads as its initial value. It needs `is_sparse`; without an
    initializer its values begin uniform between -1/sqrt(width) and 1/sqrt(width).
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
    _check_size(size, is_sparse, is_distributed)
    padding = _padding(size[0], padding_idx)
    table = helper.create_parameter(
        helper.param_attr, size, dtype, default_initializer=_first_values(size)
    )
    rows = helper.create_variable_for_type_inference(table.dtype)
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


def _check_size(size: Sequence[int], is_sparse: bool, is_distributed: bool) -> None:
    if len(size) != 2 or size[1] < 1 or (size[0] < 1 and size[0] != -1):
        raise InvalidArgument(
            f"embedding: size must be [rows, width], got {list(size)}",
            hint="rows are -1 where the table grows with the ids that it meets",
        )
    if not is_sparse and (is_distributed or size[0] == -1):
        kind = "that grows" if size[0] == -1 else "with is_distributed=True"
        raise InvalidArgument(
            f"embedding: a table {kind} needs is_sparse=True",
            hint="its gradient holds only the rows that were read",
        )


def _padding(height: int, padding_idx: int | None) -> int:
    """The row that reads as zeros, -1 for none."""
    if padding_idx is None:
        return -1
    if height == -1 and padding_idx < 0:
        raise InvalidArgument(
            f"embedding: padding_idx {padding_idx} counts from the end, and a table that grows "
            "has none"
        )
    if height != -1 and not -height <= padding_idx < height:
        raise InvalidArgument(f"embedding: padding_idx {padding_idx} is not among {height} rows")
    return padding_idx + height if padding_idx < 0 else padding_idx


def _first_values(size: Sequence[int]) -> Any:
    """How a table that grows begins where the user does not say: no rule that counts rows fits."""
    limit = 1 / sqrt(size[1])
    return UniformInitializer(-limit, limit) if size[0] == -1 else None


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """Selected rows with each row once, equal rows added."""
    return append("merge_selected_rows", {"X": x}, name=name)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """The values of selected rows as a tensor: one line per selected row, not per row of the
    table.
    """
    return append("get_tensor_from_selected_rows", {"X": x}, name=name)
