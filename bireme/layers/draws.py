"""Newer random layers: whole numbers, standard normal numbers, permutations."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, to_dtype

from .helper import LayerHelper
from .tensor import sized

__all__ = [
    "randint",
    "randn",
    "randperm",
]


def randint(
    low: int,
    high: int | None = None,
    shape: Sequence[Any] | Variable | None = None,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> Variable:
    """Whole numbers from `low` to `high`, without `high`; from 0 to `low` if there is no `high`."""
    low, high = (0, low) if high is None else (low, high)
    if low >= high:
        raise InvalidArgument(f"randint: there is no whole number from {low} to below {high}")
    attrs = {"low": low, "high": high, "seed": seed}
    kind = "int64" if dtype is None else dtype
    return _drawn("randint", "randint", shape or [1], kind, attrs, out, stop_gradient, name)


def randn(
    shape: Sequence[Any] | Variable,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """Standard normal numbers, drawn with the seed of the program."""
    attrs = {"mean": 0.0, "std": 1.0, "seed": 0}
    kind = "float32" if dtype is None else dtype
    return _drawn("gaussian_random", "randn", shape, kind, attrs, out, stop_gradient, name)


def randperm(
    n: int,
    out: Variable | None = None,
    dtype: Any = "int64",
    device: str | None = None,
    stop_gradient: bool = True,
    seed: int = 0,
) -> Variable:
    """The whole numbers below `n` in random order."""
    if n < 1:
        raise InvalidArgument(f"randperm: {n} numbers have no order")
    return _drawn("randperm", "randperm", None, dtype, {"n": n, "seed": seed}, out, stop_gradient)


def _drawn(
    type: str,
    layer: str,
    shape: Sequence[Any] | Variable | None,
    dtype: Any,
    attrs: dict[str, Any],
    out: Variable | None,
    stop_gradient: bool,
    name: str | None = None,
) -> Variable:
    helper = LayerHelper(layer, name=name)
    kind = to_dtype(dtype)
    inputs: dict[str, Any] = {}
    attrs["dtype"] = int(kind)
    if out is None:
        out = helper.create_variable_for_type_inference(kind)
    if shape is not None:
        sized(inputs, attrs, shape, "shape", "ShapeTensor", "ShapeTensorList", None)
    helper.append_op(type=type, inputs=inputs, outputs={"Out": out}, attrs=attrs)
    out.stop_gradient = stop_gradient
    return out
