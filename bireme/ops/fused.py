"""One operator for two: a sum or product and an activation, as programs of 1.8.5 fuse them; and a
fully connected layer, as programs saved after its passes have it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .elementwise import fitted, gathered
from .table import GradOp, Infer, no_gradient, op


class _Unary(NamedTuple):
    """An activation, and its slope by (input, output); both take the factor of `scale`."""

    value: Callable[[Any, Array, float], Array]
    slope: Callable[[Any, Array, Array, float], Array]


_UNARY = {
    "relu": _Unary(lambda xp, x, _: xp.maximum(x, 0), lambda xp, x, y, _: (y > 0).astype(x.dtype)),
    "scale": _Unary(lambda xp, x, k: x * x.dtype.type(k), lambda xp, x, y, k: x.dtype.type(k)),
    "sigmoid": _Unary(lambda xp, x, _: 1 / (1 + xp.exp(-x)), lambda xp, x, y, _: y * (1 - y)),
    "tanh": _Unary(lambda xp, x, _: xp.tanh(x), lambda xp, x, y, _: 1 - y * y),
}
_BINARY = ("elementwise_add", "elementwise_mul")


def _rule(ctx: Infer) -> None:
    _, _, inner = _functions(ctx.attr("functor_list"))
    x, y = ctx.x("X"), ctx.x("Y")
    whole = x if len(x.shape) >= len(y.shape) else y
    ctx.set("Out", like=whole)
    ctx.set("IntermediateOut", like=y if inner else whole)


def _functions(names: Any) -> tuple[_Unary, bool, bool]:
    """(the activation, whether the operands are multiplied, whether Y alone is activated)."""
    known = len(names) == 2 and sorted(n in _BINARY for n in names) == [False, True]
    inner = known and names[0] in _BINARY
    first, second = (names[1], names[0]) if inner else (names[0], names[-1])
    if not known or first not in _UNARY:
        raise InvalidArgument(
            f"fused_elemwise_activation of {list(names)}",
            hint=f"one of {', '.join(_BINARY)} and one of {', '.join(_UNARY)}",
        )
    return _UNARY[first], second == "elementwise_mul", inner


@op(
    "fused_elemwise_activation",
    infer=_rule,
    grad=GradOp(uses=("X", "Y"), wrt=("X", "Y"), of=("Out",)),
    returns="Out IntermediateOut",
)
def fused_elemwise_activation(
    xp: Any, X: Array, Y: Array, functor_list: Any, axis: int, scale: float
) -> tuple[Array, Array]:
    """`[unary, binary]` is unary(binary(X, Y)), `[binary, unary]` is binary(X, unary(Y))."""
    unary, product, inner = _functions(functor_list)
    second = unary.value(xp, Y, scale) if inner else Y
    x, y = fitted(X, second, axis)
    both = x * y if product else x + y
    return (both, second) if inner else (unary.value(xp, both, scale), both)


@op("fused_elemwise_activation_grad")
def fused_elemwise_activation_grad(
    xp: Any, X: Array, Y: Array, dOut: Array, functor_list: Any, axis: int, scale: float
) -> tuple[Array, Array]:
    unary, product, inner = _functions(functor_list)
    second = unary.value(xp, Y, scale) if inner else Y
    x, y = fitted(X, second, axis)
    flowing = dOut
    if not inner:
        both = x * y if product else x + y
        flowing = dOut * unary.slope(xp, both, unary.value(xp, both, scale), scale)
    of_x, of_y = (flowing * y, flowing * x) if product else (flowing, flowing)
    slope = unary.slope(xp, Y, second, scale) if inner else Y.dtype.type(1)
    return gathered(xp, of_x, X, axis), gathered(xp, of_y, Y, axis) * slope


def _fc_rule(ctx: Infer) -> None:
    x, w = ctx.x("Input"), ctx.x("W")
    lead = x.shape[: ctx.attr("in_num_col_dims")]
    ctx.set("Out", (*lead, w.shape[1] - (4 if ctx.attr("padding_weights") else 0)), like=x)


@op("fc", infer=_fc_rule, grad=no_gradient)
def fc(
    xp: Any,
    Input: Array,
    W: Array,
    Bias: Array | None,
    in_num_col_dims: int,
    activation_type: str,
    padding_weights: bool,
) -> Array:
    """Input x W + Bias, then relu if so named; padded weights have 4 more rows and columns."""
    weight = W[:-4, :-4] if padding_weights else W
    lead = Input.shape[:in_num_col_dims]
    out = xp.matmul(Input.reshape(-1, len(weight)), weight)
    out = out if Bias is None else out + Bias.reshape(-1)
    out = xp.maximum(out, 0) if activation_type == "relu" else out
    return out.reshape(*lead, weight.shape[1])
