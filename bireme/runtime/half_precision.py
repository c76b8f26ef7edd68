"""Operators on half precision: computed in float32, with results rounded once.

So sums have float32's range and accuracy whatever the kernel, and a host, whose processors have no
half precision arithmetic, computes at float32's speed.
"""

import functools
from collections.abc import Callable
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.places import CUDAPlace, Place
from bireme.arrays.values import SelectedRows, WithLoD
from bireme.ir import Block, Operator, VarType
from bireme.ops.table import Kernel, Role, Row

__all__ = ["in_single"]

# What moves or compares values, and needs no other type.
_EXACT = frozenset(
    f"{kind}{grad}"
    for kind in ("relu", "reshape2", "transpose2", "flatten2", "stack", "slice", "concat", "split")
    for grad in ("", "_grad")
) | {"cast", "assign", "fill_zeros_like", "shape", "isfinite"}
# A device's libraries take half precision, and add up in float32.
_ON_DEVICE = frozenset(("mul", "mul_grad", "matmul", "matmul_grad"))


def in_single(row: Row, kernel: Kernel, op: Operator, block: Block, place: Place) -> Kernel:
    """A kernel for the values that an operator has: the same, unless some are in half precision."""
    native = op.type in _EXACT or (isinstance(place, CUDAPlace) and op.type in _ON_DEVICE)
    if native or row.control or row.effect:
        return kernel
    lowered = {slot for slot, names in op.outputs.items() if any(_half(n, block) for n in names)}
    if not lowered and not any(_half(name, block) for name in op.input_arg_names):
        return kernel
    roles = [parameter.role for parameter in row.parameters(kernel)]
    results = [slot in lowered for slot in row.returns]

    @functools.wraps(kernel)
    def run(*given: Any) -> Any:
        arguments = [_argument(v, role) for v, role in zip(given, roles, strict=True)]
        found = kernel(*arguments)
        if len(results) == 1:
            return _each(found, _down) if results[0] else found
        pairs = zip(found, results, strict=True)
        return tuple(_each(value, _down) if low else value for value, low in pairs)

    return run


def _half(name: str, block: Block) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and var.dtype == VarType.FP16


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
    return array.astype("float32") if array.dtype == "float16" else array


def _down(array: Array) -> Array:
    return array.astype("float16") if array.dtype == "float32" else array
