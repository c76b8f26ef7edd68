"""Doors for data: the variables that a feed fills."""

from collections.abc import Sequence
from typing import Any

from bireme.ir import Variable, VarType, default_main_program

__all__ = [
    "data",
]


def data(
    name: str,
    shape: Sequence[int | None],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: VarType = VarType.LOD_TENSOR,
    stop_gradient: bool = True,
) -> Variable:
    """A variable to be fed; a batch dimension of -1 is put first unless the shape has an unknown
    one.
    """
    sizes = [-1 if n is None else n for n in shape]
    if append_batch_size and not any(n < 0 for n in sizes):
        sizes = [-1, *sizes]
    return (
        default_main_program()
        .global_block()
        .create_var(
            name=name,
            shape=sizes,
            dtype=dtype,
            type=type,
            stop_gradient=stop_gradient,
            lod_level=lod_level,
            is_data=True,
        )
    )
