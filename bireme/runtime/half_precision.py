"""Operators on half precision: computed in float32, with results rounded once.

So sums have float32's range and accuracy whatever the kernel, and a host, whose processors have no
half precision arithmetic, computes at float32's speed.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.places import CUDAPlace, Place
from bireme.arrays.values import SelectedRows, WithLoD
from bireme.ir import HALVES, Block, Operator, VarType, numpy_name
from bireme.ops.table import Kernel, Role, Row

__all__ = ["in_single"]

# What moves values, and needs no other type; and what compares them, which NumPy does in float16.
_MOVING = frozenset(
    f"{kind}{grad}"
    for kind in ("reshape2", "transpose2", "flatten2", "stack", "slice", "concat", "split")
    for grad in ("", "_grad")
) | {"cast", "assign", "fill_zeros_like", "shape"}
_COMPARING = frozenset(("relu", "relu_grad", "isfinite"))
# A device's libraries take half precision, and add up in float32.
_NAMES = ("float16", "bfloat16")
_ON_DEVICE = frozenset(("mul", "mul_grad", "matmul", "matmul_grad"))


def in_single(row: Row, kernel: Kernel, op: Operator, block: Block, place: Place) -> Kernel:
    """A kernel for the values that an operator has: the same, unless some are in half precision."""
    if row.control or row.effect:
        return kernel
    halves = {_half(name, block) for name in (*op.input_arg_names, *op.output_arg_names)} - {None}
    if not halves:
        return kernel
    single = (isinstance(place, CUDAPlace) and op.type in _ON_DEVICE) or op.type in _COMPARING
    native = op.type in _MOVING or (single and halves == {VarType.FP16})
    return _quiet(kernel if native else _rounded(row, kernel, op, block))


def _quiet(kernel: Kernel) -> Kernel:
    """Without NumPy's warnings: what overflows is infinite, and a dynamic scale counts on it."""

    @functools.wraps(kernel)
    def run(*given: Any) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return kernel(*given)

    return run


def _rounded(row: Row, kernel: Kernel, op: Operator, block: Block) -> Kernel:
    """The kernel in float32, with results in half precision rounded."""
    roles = [parameter.role for parameter in row.parameters(kernel)]
    results = [_result(op.outputs.get(slot, ()), block) for slot in row.returns]

    @functools.wraps(kernel)
    def run(*given: Any) -> Any:
        arguments = [_argument(v, role) for v, role in zip(given, roles, strict=True)]
        found = kernel(*arguments)
        if len(results) == 1:
            return _each(found, results[0])
        pairs = zip(found, results, strict=True)
        return tuple(_each(value, down) for value, down in pairs)

    return run


def _half(name: str, block: Block) -> VarType | None:
    """The type of a variable in half precision."""
    var = block._find_var_recursive(name)
    return var.dtype if var is not None and var.dtype in HALVES else None


def _result(names: Iterable[str], block: Block) -> Callable[[Array], Array]:
    """What brings the arrays of a result into the type of its variables."""
    half = next(filter(None, (_half(name, block) for name in names)), None)
    return _same if half is None else functools.partial(_down, numpy_name(half))


def _argument(value: Any, role: Role) -> Any:
    if role is Role.INPUT:
        return _each(value, _up)
    return None if role is Role.OUT else value


def _each(value: Any, change: Callable[[Array], Array]) -> Any:
    """The value with its arrays changed."""
    if isinstance(value, list):
        return [_each(item, change) for item in value]
    if isinstance(value, WithLoD):
        return WithLoD(change(value.array), value.lod)
    if isinstance(value, SelectedRows):
        return SelectedRows(value.rows, change(value.value), value.height)
    return value if value is None or not hasattr(value, "dtype") else change(value)


def _up(array: Array) -> Array:
    return array.astype("float32") if array.dtype.name in _NAMES else array


def _down(name: str, array: Array) -> Array:
    return array.astype(name) if array.dtype == "float32" else array


def _same(array: Array) -> Array:
    return array
