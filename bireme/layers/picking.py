"""Layers that pick elements by index, and questions about tensors: shape, size, what is not
finite.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.ir import Variable, VarType

from .shaping import slice
from .single import append
from .tensor import assign, zeros

__all__ = [
    "allclose",
    "gather",
    "gather_nd",
    "has_inf",
    "has_nan",
    "index_sample",
    "index_select",
    "is_empty",
    "isfinite",
    "nonzero",
    "one_hot",
    "rank",
    "scatter",
    "scatter_nd",
    "scatter_nd_add",
    "shape",
    "shard_index",
    "size",
    "where",
]


# -- picking -----------------------------------------------------------------------------------
def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """The rows of input that index names. `overwrite` stays in the program and changes nothing:
    gradients of a row that is named several times add up.
    """
    return append("gather", {"X": input, "Index": index}, {"overwrite": overwrite})


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """The elements or parts of input that each row of index names."""
    return append("gather_nd", {"X": input, "Index": index}, name=name)


def scatter(
    input: Variable,
    index: Variable,
    updates: Variable,
    name: str | None = None,
    overwrite: bool = True,
) -> Variable:
    """input with the rows that index names replaced by updates, or set to their sum."""
    inputs = {"X": input, "Ids": index, "Updates": updates}
    return append("scatter", inputs, {"overwrite": overwrite}, name=name)


def scatter_nd_add(
    ref: Variable, index: Variable, updates: Variable, name: str | None = None
) -> Variable:
    """ref with updates added where each row of index says."""
    inputs = {"X": ref, "Index": index, "Updates": updates}
    return append("scatter_nd_add", inputs, name=name)


def scatter_nd(
    index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None
) -> Variable:
    """Zeros of `shape` with updates added where each row of index says."""
    return scatter_nd_add(zeros(shape, updates.dtype), index, updates, name)


def index_select(input: Variable, index: Variable, dim: int = 0) -> Variable:
    """The parts of input along `dim` that index names."""
    return append("index_select", {"X": input, "Index": index}, {"dim": dim})


def index_sample(x: Variable, index: Variable) -> Variable:
    """In each row of x the elements that the same row of index names."""
    return append("index_sample", {"X": x, "Index": index})


def where(condition: Variable) -> Variable:
    """The coordinates of what is true, one row each."""
    return append("where_index", {"Condition": condition}, dtype="int64")


def nonzero(input: Variable, as_tuple: bool = False) -> Any:
    """The coordinates of what is not zero, one row each, or one column vector per dimension."""
    found = where(input)
    if not as_tuple:
        return found
    rank = len(input.shape)
    return (found,) if rank <= 1 else tuple(slice(found, [1], [i], [i + 1]) for i in range(rank))


def one_hot(input: Variable, depth: Any, allow_out_of_range: bool = False) -> Variable:
    """Rows of zeros with a one at each id; the last dimension of input is 1 and becomes `depth`."""
    inputs = {"X": input}
    attrs: dict[str, Any] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        depth.stop_gradient = True
        inputs["depth_tensor"] = depth
    else:
        attrs["depth"] = depth
    return append("one_hot", inputs, attrs, dtype="float32", stop_gradient=True)


def shard_index(
    input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Variable:
    """Ids as this shard counts them; those of other shards become `ignore_value`."""
    attrs = {
        "index_num": index_num,
        "nshards": nshards,
        "shard_id": shard_id,
        "ignore_value": ignore_value,
    }
    return append("shard_index", {"X": input}, attrs)


# -- facts -------------------------------------------------------------------------------------
def shape(input: Variable) -> Variable:
    """The shape, as a tensor of int32."""
    return append("shape", {"Input": input}, dtype="int32")


def size(input: Variable) -> Variable:
    """The number of elements, as a tensor of one int64."""
    return append("size", {"Input": input}, dtype="int64")


def rank(input: Variable) -> Variable:
    """The number of dimensions, as a tensor without dimensions."""

    return assign(np.array(len(input.shape), dtype="int32"))


def has_inf(x: Variable) -> Variable:
    """Whether any element is infinite."""
    return append("isinf", {"X": x})


def has_nan(x: Variable) -> Variable:
    """Whether any element is not a number."""
    return append("isnan", {"X": x})


def isfinite(x: Variable) -> Variable:
    """Whether every element is a finite number."""
    return append("isfinite", {"X": x}, dtype="bool")


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Whether there is no element, into `cond` if it is given."""
    if cond is None:
        return append("is_empty", {"X": x}, dtype="bool", stop_gradient=True)
    return append("is_empty", {"X": x}, dtype=VarType.BOOL, out=cond)


def allclose(
    input: Variable,
    other: Variable,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Variable:
    """Whether all elements are nearly equal."""
    attrs = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    return append("allclose", {"Input": input, "Other": other}, attrs, dtype="bool", name=name)
