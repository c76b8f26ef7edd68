"""Binary layers: arithmetic with Fluid's `axis`, comparisons and logic."""

from collections.abc import Callable
from typing import Any

from bireme.ir import Variable

from .single import append, checked

__all__ = [
    "elementwise_add",
    "elementwise_div",
    "elementwise_equal",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "equal",
    "greater_equal",
    "greater_than",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


Binary = Callable[..., Variable]


def _arithmetic(name: str, sign: str) -> Binary:
    type = "elementwise_" + name

    def layer(
        x: Variable, y: Variable, axis: int = -1, act: Any = None, name: str | None = None
    ) -> Variable:
        inputs = {"X": checked(x, type, "x"), "Y": checked(y, type, "y")}
        return append(type, inputs, {"axis": axis}, name=name, act=act)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = (
        f"x {sign} y. The dimensions of y are those of x from `axis` on; -1 means the last ones."
    )
    return layer


elementwise_add = _arithmetic("add", "+")
elementwise_sub = _arithmetic("sub", "-")
elementwise_mul = _arithmetic("mul", "*")
elementwise_div = _arithmetic("div", "/")
elementwise_max = _arithmetic("max", "max")
elementwise_min = _arithmetic("min", "min")
elementwise_pow = _arithmetic("pow", "to the power")
elementwise_mod = _arithmetic("mod", "modulo")
elementwise_floordiv = _arithmetic("floordiv", "divided, towards zero, by")


def _comparison(type: str, sign: str, stopped: bool) -> Binary:
    def layer(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
        return _compared(type, x, y, cond, {}, stopped)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = f"Whether x {sign} y, element by element, into `cond` if it is given."
    return layer


def _compared(
    type: str, x: Variable, y: Variable, cond: Variable | None, attrs: dict[str, Any], stopped: bool
) -> Variable:
    inputs = {"X": checked(x, type, "x"), "Y": checked(y, type, "y")}
    return append(type, inputs, attrs, dtype="bool", out=cond, stop_gradient=stopped)


less_equal = _comparison("less_equal", "<=", True)
greater_than = _comparison("greater_than", ">", True)
greater_equal = _comparison("greater_equal", ">=", True)
equal = _comparison("equal", "==", True)
not_equal = _comparison("not_equal", "!=", True)


def less_than(
    x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None
) -> Variable:
    """Whether x < y, element by element, into `cond` if it is given."""
    return _compared("less_than", x, y, cond, {"force_cpu": force_cpu}, True)


def elementwise_equal(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Whether x == y, element by element."""
    return append(
        "equal",
        {"X": x, "Y": y},
        layer="elementwise_equal",
        name=name,
        dtype="bool",
        stop_gradient=True,
    )


def _logic(type: str, word: str) -> Binary:
    def layer(
        x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
    ) -> Variable:
        inputs = {"X": checked(x, type, "x"), "Y": checked(y, type, "y")}
        return append(type, inputs, dtype="bool", out=out, name=name)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = f"x {word} y, for booleans."
    return layer


logical_and = _logic("logical_and", "and")
logical_or = _logic("logical_or", "or")
logical_xor = _logic("logical_xor", "or, but not both,")


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Not x, for booleans."""
    return append("logical_not", {"X": x}, dtype="bool", out=out, name=name)
