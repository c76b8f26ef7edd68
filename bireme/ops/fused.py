"""One operator for two: a sum or product and an activation, as programs of 1.8.5 fuse them; and a
fully connected layer, as programs saved after its passes have it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .activations import relu_grad, sigmoid_of
from .elementwise import fitted, gathered
from .table import GradOp, Infer, no_gradient, op
from .tiles import TILE


class _Unary(NamedTuple):
    """An activation, and its slope by (input, output); both take the factor of `scale`."""

    value: Callable[[Any, Array, float], Array]
    slope: Callable[[Any, Array, Array, float], Array]
    inplace: Callable[[Any, Array, float], Any]  # overwrites its argument
    by_output: Callable[..., Array] | None = None  # the gradient from the output: (xp, y, dy, out)


_UNARY = {
    "relu": _Unary(
        lambda xp, x, _: xp.maximum(x, 0),
        lambda xp, x, y, _: (y > 0).astype(x.dtype),
        lambda xp, x, _: xp.maximum(x, 0, out=x),
        relu_grad,
    ),
    "scale": _Unary(
        lambda xp, x, k: x * x.dtype.type(k),
        lambda xp, x, y, k: x.dtype.type(k),
        lambda xp, x, k: xp.multiply(x, x.dtype.type(k), out=x),
    ),
    "sigmoid": _Unary(
        lambda xp, x, _: sigmoid_of(xp, x),
        lambda xp, x, y, _: y * (1 - y),
        lambda xp, x, _: sigmoid_of(xp, x, x),
    ),
    "tanh": _Unary(
        lambda xp, x, _: xp.tanh(x),
        lambda xp, x, y, _: 1 - y * y,
        lambda xp, x, _: xp.tanh(x, out=x),
    ),
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
    grad=GradOp(uses=("X", "Y", "Out"), wrt=("X", "Y"), of=("Out",)),
    returns="Out IntermediateOut",
    inplace={"Out": "X"},
    compiled="fused",
)
def fused_elemwise_activation(
    xp: Any,
    X: Array,
    Y: Array,
    functor_list: Any,
    axis: int,
    scale: float,
    bireme_equal: bool | None,
    need: frozenset[str],
    out: Any = None,
) -> tuple[Array, Array]:
    """`[unary, binary]` is unary(binary(X, Y)), `[binary, unary]` is binary(X, unary(Y))."""
    unary, product, inner = _functions(functor_list)
    if bireme_equal and X.shape != Y.shape:
        raise InvalidArgument(
            f"a sum of shapes {list(X.shape)} and {list(Y.shape)}, which are declared alike",
            hint="BuildStrategy.fuse_elewise_add_act_ops = False",
        )
    out = None if out is None else out[0]
    if not inner and "IntermediateOut" not in need:
        x, y = fitted(X, Y, axis)
        return _in_tiles(xp, unary, product, (x, y), scale, out), None
    second = unary.value(xp, Y, scale) if inner else Y
    x, y = fitted(X, second, axis)
    both = x * y if product else x + y
    return (both, second) if inner else (unary.value(xp, both, scale), both)


def _in_tiles(
    xp: Any, unary: _Unary, product: bool, operands: tuple[Array, Array], scale: float, out: Array
) -> Array:
    """unary(x + y), a tile of rows at a time, so that the sum does not leave the cache."""
    x, y = operands
    shape = np.broadcast_shapes(x.shape, y.shape)
    if out is None or out.shape != shape:
        out = xp.empty(shape, dtype=x.dtype)
    if not shape:
        out[...] = unary.value(xp, x * y if product else x + y, scale)
        return out
    binary = xp.multiply if product else xp.add
    x, y = xp.broadcast_to(x, shape), xp.broadcast_to(y, shape)
    step = max(1, 8 * TILE * len(out) // max(out.size, 1)) if xp is np else len(out)

    def work(part: slice) -> None:
        for start in range(part.start, part.stop, step):
            rows = slice(start, min(start + step, part.stop))
            unary.inplace(xp, binary(x[rows], y[rows], out=out[rows]), scale)

    lanes.spread(xp, work, len(out), 3 * out.size)
    return out


@op("fused_elemwise_activation_grad", inplace={"X@GRAD": "Out@GRAD"}, compiled="fused")
def fused_elemwise_activation_grad(
    xp: Any,
    X: Array,
    Y: Array,
    Out: Array,
    dOut: Array,
    functor_list: Any,
    axis: int,
    scale: float,
    need: frozenset[str],
    out: Any = None,
) -> tuple[Array, Array]:
    """`[unary, binary]` or, as 1.8.5's pass writes it, `[binary_grad, unary_grad]`. That of a sum
    takes the slope from `Out`; an operand that is absent has its shape.
    """
    names = [name.removesuffix("_grad") for name in functor_list]
    names = names[::-1] if list(functor_list) != names else names
    unary, product, inner = _functions(names)
    if not (product or inner) and Out is not None and unary.by_output is not None:
        flowing = unary.by_output(xp, Out, dOut, None if out is None else out[0])
        return (
            flowing if X is None else gathered(xp, flowing, X, axis),
            flowing if Y is None else gathered(xp, flowing, Y, axis),
        )
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
