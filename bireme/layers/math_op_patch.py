"""Arithmetic on variables: `x + y`, `x * 2`, `x < y`, `x[1:]` append operators, as Fluid's do.

A number beside a variable becomes a scaling where that is possible, else a constant; the other
operand is cast to the dtype of the left one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument, WrongType
from bireme.ir import Variable, VarType, to_dtype, unique_name
from bireme.sites import calling_site

from .nn import matmul
from .subscript import subscript

Method = Callable[[Variable, Any], Variable]
_WHOLE = (VarType.BOOL, VarType.INT8, VarType.INT16, VarType.INT32, VarType.INT64, VarType.UINT8)


def _temporary(like: Variable, dtype: Any = None) -> Variable:
    block = like.block.program.current_block()
    kind = like.dtype if dtype is None else dtype
    return block.create_var(name=unique_name.generate("tmp"), dtype=kind)


def _append(like: Variable, type: str, inputs: Any, out: Variable, attrs: Any) -> Variable:
    like.block.program.current_block().append_op(
        type=type, inputs=inputs, outputs={"Out": [out]}, attrs=attrs
    )
    return out


def _scaled(x: Variable, scale: float, bias: float) -> Variable:
    attrs = {"scale": float(scale), "bias": float(bias)}
    return _append(x, "scale", {"X": [x]}, _temporary(x), attrs)


def _full(like: Variable, value: float, spread: bool) -> Variable:
    """A constant of one element, or of the shape of `like`."""
    out = _temporary(like)
    if spread and any(n < 0 for n in like.shape):
        return _full_batch(like, value, out)
    shape = like.shape if spread else (1,)
    assert like.dtype is not None
    attrs = {
        "dtype": int(like.dtype),
        "shape": list(shape),
        "value": float(value),
        "force_cpu": False,
    }
    _append(like, "fill_constant", {}, out, attrs)
    out.stop_gradient = True
    return out


def _full_batch(like: Variable, value: float, out: Variable) -> Variable:
    at = next(i for i, n in enumerate(like.shape) if n < 0)
    shape = [1 if i != at and n < 0 else n for i, n in enumerate(like.shape)]
    assert like.dtype is not None
    attrs = {
        "dtype": int(like.dtype),
        "force_cpu": False,
        "shape": shape,
        "value": float(value),
        "input_dim_idx": at,
        "output_dim_idx": at,
    }
    _append(like, "fill_constant_batch_size_like", {"Input": [like]}, out, attrs)
    out.stop_gradient = True
    return out


def _cast(x: Variable, dtype: VarType) -> Variable:
    attrs = {"in_dtype": int(VarType.FP32 if x.dtype is None else x.dtype), "out_dtype": int(dtype)}
    return _append(x, "cast", {"X": [x]}, _temporary(x, dtype), attrs)


_SCALINGS: dict[str, Callable[[Variable, float], Variable]] = {
    "__add__": lambda x, n: _scaled(x, 1.0, n),
    "__radd__": lambda x, n: _scaled(x, 1.0, n),
    "__sub__": lambda x, n: _scaled(x, 1.0, -n),
    "__rsub__": lambda x, n: _scaled(x, -1.0, n),
    "__mul__": lambda x, n: _scaled(x, n, 0.0),
    "__rmul__": lambda x, n: _scaled(x, n, 0.0),
    "__truediv__": lambda x, n: _scaled(x, 1.0 / n, 0.0),
    "__div__": lambda x, n: _scaled(x, 1.0 / n, 0.0),
}
_DIVISIONS = ("__truediv__", "__div__")


def _number(x: Variable, method: str, value: Any) -> Variable | None:
    """The scaling that a number asks for, if there is one."""
    scaling = _SCALINGS.get(method)
    if scaling is None or (method in _DIVISIONS and (x.dtype in _WHOLE or value == 0)):
        return None
    if x.dtype in _WHOLE and not float(value).is_integer():
        raise WrongType(
            f"{x.name!r} is {x.numpy_dtype}: {value} is not a whole number",
            where=f"at {calling_site()}",
            hint="layers.cast(x, 'float32') first",
        )
    return scaling(x, float(value))


def _binary(method: str, type: str, swapped: bool = False, compares: bool = False) -> Method:
    def call(self: Variable, other: Any) -> Variable:
        if not isinstance(other, Variable):
            if not isinstance(other, int | float | np.generic):
                return NotImplemented  # type: ignore[no-any-return]  # Python asks the other side
            scaled = None if isinstance(other, np.generic) else _number(self, method, other)
            if scaled is not None:
                return scaled
            other = _full(self, float(other), spread=swapped)
        elif other.dtype != self.dtype and self.dtype is not None:
            other = _cast(other, self.dtype)
        x, y = (other, self) if swapped else (self, other)
        axis = 0 if y.shape[:1] == (-1,) else -1  # two batches are aligned at their first dimension
        out = _temporary(self, VarType.BOOL if compares else None)
        return _append(self, type, {"X": [x], "Y": [y]}, out, {"axis": axis})

    call.__name__ = method
    call.__doc__ = f"Appends {type}."
    return call


def _negative(self: Variable) -> Variable:
    return _scaled(self, -1.0, 0.0)


_OPERATORS = {
    "__add__": ("elementwise_add", False),
    "__radd__": ("elementwise_add", False),
    "__sub__": ("elementwise_sub", False),
    "__rsub__": ("elementwise_sub", True),
    "__mul__": ("elementwise_mul", False),
    "__rmul__": ("elementwise_mul", False),
    "__truediv__": ("elementwise_div", False),
    "__div__": ("elementwise_div", False),
    "__rtruediv__": ("elementwise_div", True),
    "__rdiv__": ("elementwise_div", True),
    "__pow__": ("elementwise_pow", False),
    "__rpow__": ("elementwise_pow", True),
    "__floordiv__": ("elementwise_floordiv", False),
    "__mod__": ("elementwise_mod", False),
}
_COMPARISONS = {
    "__eq__": "equal",
    "__ne__": "not_equal",
    "__lt__": "less_than",
    "__le__": "less_equal",
    "__gt__": "greater_than",
    "__ge__": "greater_equal",
}


def _iterate(self: Variable) -> Iterator[Variable]:
    if not self.shape or self.shape[0] < 0:
        raise InvalidArgument(
            f"variable {self.name!r} of shape {list(self.shape)} cannot be iterated over",
            hint="only dimensions known when the program is built can; see layers.while_loop",
        )
    return (subscript(self, i) for i in range(self.shape[0]))


def _astype(self: Variable, dtype: Any) -> Variable:
    """A copy with elements of another type."""
    return _cast(self, to_dtype(dtype))


def monkey_patch_variable() -> None:
    """Give variables their operators."""
    for method, (type, swapped) in _OPERATORS.items():
        setattr(Variable, method, _binary(method, type, swapped))
    for method, type in _COMPARISONS.items():
        setattr(Variable, method, _binary(method, type, compares=True))
    others = {
        "__neg__": _negative,
        "astype": _astype,
        "__matmul__": matmul,
        "__getitem__": subscript,
        "__iter__": _iterate,
    }
    for method, function in others.items():
        setattr(Variable, method, function)


monkey_patch_variable()
