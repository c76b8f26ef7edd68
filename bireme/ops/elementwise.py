"""Binary operators: `Out = X op Y`, where Y is aligned with X at `axis` and spread over the
other dimensions.

Gradients of spread operands are sums over the dimensions they were spread over.
"""

from collections.abc import Callable
from functools import lru_cache

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, grad_name

from .shapes import elementwise, same_as
from .table import GradOp, OpSpec, op
from .tiles import applied

Pair = tuple[Array, Array]
FIT_X = {"Out": "X"}


def fitted(x: Array, y: Array, axis: int) -> Pair:
    """Views of `x` and `y` that NumPy's broadcasting combines as Fluid does."""
    if axis == -1 or axis + y.ndim == x.ndim or x.shape == y.shape:
        return x, y
    if y.ndim > x.ndim:
        return _stretched(x, y, axis), y
    return x, _stretched(y, x, axis)


def _stretched(small: Array, large: Array, axis: int) -> Array:
    missing = large.ndim - axis - small.ndim
    if missing == 0:
        return small
    shape = small.shape
    while missing < 0 and shape and shape[-1] == 1:
        shape, missing = shape[:-1], missing + 1
    return small.reshape(shape + (1,) * missing)


@lru_cache(maxsize=4096)  # steps repeat their shapes
def _spread_over(large: tuple[int, ...], small: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The dimensions of the shape `large` over which the shape `small` is spread."""
    at = len(large) - len(small) if axis == -1 else axis
    inner = small if at + len(small) <= len(large) else small[: len(large) - at]
    return tuple(
        i
        for i, n in enumerate(large)
        if not at <= i < at + len(inner) or (inner[i - at] == 1 and n != 1)
    )


def gathered(xp: Array, grad: Array, like: Array, axis: int, out: Array = None) -> Array:
    """`grad` summed over the dimensions that `like` was spread over."""
    shape = like.shape
    if grad.shape == shape:
        return grad
    over = _spread_over(grad.shape, shape, axis)
    if len(over) == grad.ndim - len(shape) and out is not None:
        return xp.add.reduce(grad, axis=over, out=out)
    return xp.add.reduce(grad, axis=over).reshape(shape)


def pair(out: Array) -> Pair:
    """The two offered buffers, or none."""
    return (None, None) if out is None else out


def _grads(
    xp: Array,
    x: Array,
    y: Array,
    axis: int,
    need: frozenset[str],
    of_x: Callable[[], Array],
    of_y: Callable[[], Array],
) -> Pair:
    """Both gradients, each computed only where the operator has it."""
    return (
        gathered(xp, of_x(), x, axis) if "X@GRAD" in need else None,
        gathered(xp, of_y(), y, axis) if "Y@GRAD" in need else None,
    )


@op("elementwise_add", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X, out="Out")
def elementwise_add(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = (X, Y) if axis == -1 or axis + Y.ndim == X.ndim else fitted(X, Y, axis)
    return applied(xp, xp.add, x, y, out)


@op("elementwise_add_grad", inplace={"X@GRAD": "Out@GRAD"}, out="Y@GRAD")
def elementwise_add_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str], out: Array = None
) -> Pair:
    """An operand that is absent has the shape of the sum."""
    X, Y = dOut if X is None else X, dOut if Y is None else Y
    ox, oy = (None, None) if out is None else out
    return (
        gathered(xp, dOut, X, axis, ox) if "X@GRAD" in need else None,
        gathered(xp, dOut, Y, axis, oy) if "Y@GRAD" in need else None,
    )


@op("elementwise_sub", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X)
def elementwise_sub(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = (X, Y) if axis == -1 else fitted(X, Y, axis)
    return applied(xp, xp.subtract, x, y, out)


@op("elementwise_sub_grad", inplace={"X@GRAD": "Out@GRAD"}, out="Y@GRAD")
def elementwise_sub_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str], out: Array = None
) -> Pair:
    """An operand that is absent has the shape of the difference."""
    X, Y = dOut if X is None else X, dOut if Y is None else Y
    ox, oy = pair(out)
    dx = gathered(xp, dOut, X, axis, ox) if "X@GRAD" in need else None
    if "Y@GRAD" not in need:
        return dx, None
    dy = gathered(xp, dOut, Y, axis, oy)
    return dx, xp.negative(dy, out=oy if oy is not None else None if dy is dOut else dy)


@op("elementwise_mul", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X, out="Out")
def elementwise_mul(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = (X, Y) if axis == -1 else fitted(X, Y, axis)
    return applied(xp, xp.multiply, x, y, out)


@op("elementwise_mul_grad")
def elementwise_mul_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str]
) -> Pair:
    x, y = fitted(X, Y, axis)
    return _grads(xp, X, Y, axis, need, lambda: dOut * y, lambda: dOut * x)


@op(
    "elementwise_div",
    infer=elementwise,
    grad=GradOp(uses=("X", "Y", "Out")),
    inplace=FIT_X,
    out="Out",
)
def elementwise_div(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = (X, Y) if axis == -1 else fitted(X, Y, axis)
    if x.dtype.kind in "iu":
        return _truncated_quotient(xp, x, y)
    return xp.divide(x, y, out=out)


def _refuse_zero(y: Array) -> None:
    """Whole numbers know no infinity that could tell of a division by zero."""
    if y.dtype.kind in "iu" and not y.all():
        raise InvalidArgument("division of whole numbers by zero", hint="mask the zeros of Y first")


def _truncated_quotient(xp: Array, x: Array, y: Array) -> Array:
    """Whole numbers divide as in C: towards zero."""
    _refuse_zero(y)
    quotient = xp.floor_divide(xp.abs(x), xp.abs(y))
    return (xp.sign(x) * xp.sign(y) * quotient).astype(x.dtype, copy=False)


@op("elementwise_div_grad")
def elementwise_div_grad(
    xp: Array, X: Array, Y: Array, Out: Array, dOut: Array, axis: int, need: frozenset[str]
) -> Pair:
    _, y = fitted(X, Y, axis)
    share = dOut / y
    dx = gathered(xp, share, X, axis) if "X@GRAD" in need else None
    return dx, gathered(xp, -share * Out, Y, axis) if "Y@GRAD" in need else None


@op("elementwise_max", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X)
def elementwise_max(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    return xp.maximum(*fitted(X, Y, axis), out=out)


@op("elementwise_max_grad")
def elementwise_max_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str]
) -> Pair:
    x, y = fitted(X, Y, axis)
    return _grads(xp, X, Y, axis, need, lambda: dOut * (x > y), lambda: dOut * (x <= y))


@op("elementwise_min", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X)
def elementwise_min(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    return xp.minimum(*fitted(X, Y, axis), out=out)


@op("elementwise_min_grad")
def elementwise_min_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str]
) -> Pair:
    x, y = fitted(X, Y, axis)
    return _grads(xp, X, Y, axis, need, lambda: dOut * (x < y), lambda: dOut * (x >= y))


@op("elementwise_pow", infer=elementwise, grad=GradOp(uses=("X", "Y")), inplace=FIT_X)
def elementwise_pow(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = fitted(X, Y, axis)
    if x.dtype.kind in "iu":
        return xp.trunc(xp.power(x.astype(xp.float64), y)).astype(x.dtype)
    return xp.power(x, y, out=out)


@op("elementwise_pow_grad")
def elementwise_pow_grad(
    xp: Array, X: Array, Y: Array, dOut: Array, axis: int, need: frozenset[str]
) -> Pair:
    x, y = fitted(X, Y, axis)
    return _grads(
        xp,
        X,
        Y,
        axis,
        need,
        lambda: dOut * y * xp.power(x, y - 1),
        lambda: dOut * xp.log(x) * xp.power(x, y),
    )


@op("elementwise_mod", infer=elementwise)
def elementwise_mod(xp: Array, X: Array, Y: Array, axis: int, out: Array = None) -> Array:
    x, y = fitted(X, Y, axis)
    if x.dtype.kind not in "iu":
        return xp.remainder(x, y, out=out)
    _refuse_zero(y)
    return xp.fmod(x, y, out=out)


@op("elementwise_floordiv", infer=elementwise)
def elementwise_floordiv(xp: Array, X: Array, Y: Array, axis: int) -> Array:
    return _truncated_quotient(xp, *fitted(X, Y, axis))


def _minus_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """X gets the gradient, Y its negative."""
    given = {"X": [grad_name(n) for n in op.output("Out")]}
    return [
        OpSpec("scale", given, {"Out": [grad_name(n) for n in op.input(slot)]}, {"scale": sign})
        for slot, sign in (("X", 1.0), ("Y", -1.0))
    ]


@op("minus", infer=same_as("X"), grad=_minus_gradient, inplace=FIT_X)
def minus(xp: Array, X: Array, Y: Array, out: Array = None) -> Array:
    return xp.subtract(X, Y, out=out)
