"""The doors that `fluid` itself has for data and ids: exact shapes, and ids without a trailing
dimension of 1.
"""

from collections.abc import Sequence
from typing import Any

from bireme.ir import Variable, default_main_program

from .single import append
from .sparse import table_rows


def data(
    name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0
) -> Variable:
    """A variable to be fed; None or -1 is a size known when the program runs. Other feeds are
    refused.
    """
    return (
        default_main_program()
        .global_block()
        .create_var(
            name=name,
            shape=[-1 if n is None else n for n in shape],
            dtype=dtype,
            lod_level=lod_level,
            stop_gradient=True,
            is_data=True,
            need_check_feed=True,
        )
    )


def one_hot(input: Variable, depth: Any, allow_out_of_range: bool = False) -> Variable:
    """Rows of zeros with a one at each id, along a new last dimension of size `depth`."""
    inputs = {"X": input}
    attrs: dict[str, Any] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["depth_tensor"] = depth
    else:
        attrs["depth"] = depth
    return append("one_hot_v2", inputs, attrs, dtype="float32")


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """`layers.embedding` for ids without a trailing dimension of 1: [..., n] gives [..., n,
    width].
    """
    return table_rows(
        "lookup_table_v2", input, size, is_sparse, is_distributed, padding_idx, param_attr, dtype
    )
