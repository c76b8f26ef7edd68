"""Gradients of gradients, for the operators that have one in Fluid 1.8.5 and a few more.

A gradient operator computes dX = f'(X) dOut. With ddX the gradient of its result, that of dOut is
f'(X) ddX, which is the forward operator again where it is linear; and where f' depends on X, X gets
one, too. Kernels take ddX as `ddX`; absent ones are None.
"""

from collections.abc import Callable
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.ir.names import grad_name

from .activations import leaky_relu_grad
from .convolution import conv, conv_grad
from .elementwise import fitted, gathered
from .linear import matrix
from .planes import per_channel
from .reduce import reduce_mean, reduce_sum
from .reshape import expand
from .slicing import slice_
from .table import GradOp, declare, op

Kernel = Callable[..., Any]


def _second(first: str, uses: str, wrt: str, of: str = "X@GRAD") -> Callable[[Kernel], Kernel]:
    """Register the gradient of the operator `first`: what it reads, whose gradients it gives."""
    rule = GradOp(tuple(uses.split()), tuple(wrt.split()), tuple(of.split()))
    declare(first, grad=rule)
    returns = " ".join(grad_name(slot) for slot in wrt.split())
    return op(f"{first}_grad", returns=returns)


# -- of one operand ----------------------------------------------------------------------------
@_second("relu_grad", "Out", "Out@GRAD")
def relu_grad_grad(xp: Any, Out: Array, ddX: Array) -> Array:
    return xp.where(Out > 0, ddX, 0)


@_second("leaky_relu_grad", "Out", "Out@GRAD")
def leaky_relu_grad_grad(xp: Any, Out: Array, ddX: Array, alpha: float) -> Array:
    return leaky_relu_grad(xp, Out, ddX, alpha)


@_second("elu_grad", "X Out@GRAD", "X Out@GRAD")
def elu_grad_grad(xp: Any, X: Array, dOut: Array, ddX: Array, alpha: float) -> tuple[Array, Array]:
    bend = xp.where(X > 0, 0, X.dtype.type(alpha) * xp.exp(xp.minimum(X, 0)))
    return dOut * ddX * bend, ddX * xp.where(X > 0, 1, bend)


@_second("square_grad", "X Out@GRAD", "X Out@GRAD")
def square_grad_grad(xp: Any, X: Array, dOut: Array, ddX: Array) -> tuple[Array, Array]:
    return 2 * dOut * ddX, 2 * X * ddX


@_second("sqrt_grad", "Out Out@GRAD", "Out Out@GRAD")
def sqrt_grad_grad(xp: Any, Out: Array, dOut: Array, ddX: Array) -> tuple[Array, Array]:
    slope = ddX / (2 * Out)
    return -slope * dOut / Out, slope


@_second("tanh_grad", "Out Out@GRAD", "Out Out@GRAD")
def tanh_grad_grad(xp: Any, Out: Array, dOut: Array, ddX: Array) -> tuple[Array, Array]:
    return -2 * Out * dOut * ddX, ddX * (1 - Out * Out)


@_second("sigmoid_grad", "Out Out@GRAD", "Out Out@GRAD")
def sigmoid_grad_grad(xp: Any, Out: Array, dOut: Array, ddX: Array) -> tuple[Array, Array]:
    return (1 - 2 * Out) * dOut * ddX, ddX * Out * (1 - Out)


# -- of linear operators: the forward operator again --------------------------------------------
@_second("reduce_sum_grad", "", "Out@GRAD")
def reduce_sum_grad_grad(xp: Any, ddX: Array, dim: Any, keep_dim: bool, reduce_all: bool) -> Array:
    return reduce_sum(xp, ddX, dim, keep_dim, reduce_all)


@_second("reduce_mean_grad", "", "Out@GRAD")
def reduce_mean_grad_grad(xp: Any, ddX: Array, dim: Any, keep_dim: bool, reduce_all: bool) -> Array:
    return reduce_mean(xp, ddX, dim, keep_dim, reduce_all)


@_second("mean_grad", "", "Out@GRAD")
def mean_grad_grad(xp: Any, ddX: Array) -> Array:
    return xp.mean(ddX, keepdims=True).reshape(1)


@_second("reshape2_grad", "Out@GRAD", "Out@GRAD")
def reshape2_grad_grad(xp: Any, dOut: Array, ddX: Array) -> Array:
    return ddX.reshape(dOut.shape)


@_second("transpose2_grad", "", "Out@GRAD")
def transpose2_grad_grad(xp: Any, ddX: Array, axis: Any) -> Array:
    return xp.ascontiguousarray(ddX.transpose(tuple(axis)))


@_second("expand_grad", "ExpandTimes expand_times_tensor", "Out@GRAD")
def expand_grad_grad(
    xp: Any, ExpandTimes: Array, expand_times_tensor: list[Array], ddX: Array, expand_times: Any
) -> Array:
    return expand(xp, ddX, ExpandTimes, expand_times_tensor, expand_times)


_BOUNDS = "StartsTensor StartsTensorList EndsTensor EndsTensorList"


@_second("slice_grad", _BOUNDS, "Out@GRAD", "Input@GRAD")
def slice_grad_grad(
    xp: Any,
    StartsTensor: Array,
    StartsTensorList: list[Array],
    EndsTensor: Array,
    EndsTensorList: list[Array],
    ddInput: Array,
    axes: Any,
    starts: Any,
    ends: Any,
    decrease_axis: Any,
) -> Array:
    bounds = (StartsTensor, StartsTensorList, EndsTensor, EndsTensorList)
    return slice_(xp, ddInput, *bounds, axes, starts, ends, decrease_axis)


# -- of two operands ---------------------------------------------------------------------------
_BOTH = "X@GRAD Y@GRAD"


def _sum(*parts: Array) -> Array:
    """The sum of the parts that are there."""
    there = [part for part in parts if part is not None]
    total = there[0]
    for part in there[1:]:
        total = total + part
    return total


def _spread(xp: Any, part: Array | None, X: Array, Y: Array, axis: int, second: int) -> Any:
    """An operand's share, with the shape of the result."""
    if part is None:
        return None
    pair = fitted(X, part, axis) if second else fitted(part, Y, axis)
    shape = xp.broadcast_shapes(*(each.shape for each in fitted(X, Y, axis)))
    return xp.broadcast_to(pair[second], shape)


@_second("elementwise_add_grad", "X Y Out@GRAD", "Out@GRAD", _BOTH)
def elementwise_add_grad_grad(
    xp: Any, X: Array, Y: Array, ddX: Array, ddY: Array, axis: int
) -> Array:
    return _sum(*(_spread(xp, d, X, Y, axis, i) for i, d in enumerate((ddX, ddY)))) + X.dtype.type(
        0
    )


@_second("elementwise_sub_grad", "X Y Out@GRAD", "Out@GRAD", _BOTH)
def elementwise_sub_grad_grad(
    xp: Any, X: Array, Y: Array, ddX: Array, ddY: Array, axis: int
) -> Array:
    less = None if ddY is None else -ddY
    return _sum(*(_spread(xp, d, X, Y, axis, i) for i, d in enumerate((ddX, less)))) + X.dtype.type(
        0
    )


@_second("elementwise_mul_grad", "X Y Out@GRAD", "X Y Out@GRAD", _BOTH)
def elementwise_mul_grad_grad(
    xp: Any, X: Array, Y: Array, dOut: Array, ddX: Array, ddY: Array, axis: int
) -> tuple[Any, Any, Array]:
    a, b = (_spread(xp, d, X, Y, axis, i) for i, d in enumerate((ddX, ddY)))
    x, y = fitted(X, Y, axis)
    dx = xp.zeros_like(X) if b is None else gathered(xp, dOut * b, X, axis)
    dy = xp.zeros_like(Y) if a is None else gathered(xp, dOut * a, Y, axis)
    return dx, dy, _sum(None if a is None else a * y, None if b is None else b * x)


@_second("elementwise_div_grad", "X Y Out@GRAD", "X Y Out@GRAD", _BOTH)
def elementwise_div_grad_grad(
    xp: Any, X: Array, Y: Array, dOut: Array, ddX: Array, ddY: Array, axis: int
) -> tuple[Array, Array, Array]:
    """All of it through X and Y: the quotient, which the first gradient reads, gets none."""
    zero = X.dtype.type(0)
    a, b = (_spread(xp, d, X, Y, axis, i) for i, d in enumerate((ddX, ddY)))
    a, b = zero if a is None else a, zero if b is None else b
    x, y = fitted(X, Y, axis)
    dx = gathered(xp, xp.broadcast_to(-dOut * b / (y * y), dOut.shape), X, axis)
    dy = gathered(xp, dOut * (2 * x * b / y - a) / (y * y), Y, axis)
    return dx, dy, xp.broadcast_to((a - b * x / y) / y, dOut.shape) + zero


@_second("mul_grad", "X Y Out@GRAD", "X Y Out@GRAD", _BOTH)
def mul_grad_grad(
    xp: Any,
    X: Array,
    Y: Array,
    dOut: Array,
    ddX: Array,
    ddY: Array,
    x_num_col_dims: int,
    y_num_col_dims: int,
) -> tuple[Array, Array, Array]:
    x, y = matrix(X, x_num_col_dims), matrix(Y, y_num_col_dims)
    slope = dOut.reshape(x.shape[0], y.shape[1])
    a = None if ddX is None else ddX.reshape(x.shape)
    b = None if ddY is None else ddY.reshape(y.shape)
    dx = xp.zeros_like(X) if b is None else xp.matmul(slope, b.T).reshape(X.shape)
    dy = xp.zeros_like(Y) if a is None else xp.matmul(a.T, slope).reshape(Y.shape)
    parts = (None if a is None else xp.matmul(a, y), None if b is None else xp.matmul(x, b))
    return dx, dy, _sum(*parts).reshape(dOut.shape)


# -- convolution -------------------------------------------------------------------------------
def _conv_grad_grad(
    xp: Any,
    Input: Array,
    Filter: Array,
    dOutput: Array,
    ddInput: Array,
    ddFilter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
) -> tuple[Array, Array, Array]:
    """Convolution is linear in both operands: each part is a convolution or a gradient of one."""
    how = (strides, paddings, dilations, groups, padding_algorithm, data_format)
    dx, dw = xp.zeros_like(Input), xp.zeros_like(Filter)
    parts = []
    if ddFilter is not None:
        dx = conv_grad(xp, Input, ddFilter, dOutput, *how, frozenset({"Input@GRAD"}))[0]
        parts.append(conv(xp, Input, ddFilter, *how))
    if ddInput is not None:
        dw = conv_grad(xp, ddInput, Filter, dOutput, *how, frozenset({"Filter@GRAD"}))[1]
        parts.append(conv(xp, ddInput, Filter, *how))
    return dx, dw, _sum(*parts)


for _name in ("conv2d", "depthwise_conv2d", "conv3d"):
    _second(
        f"{_name}_grad",
        "Input Filter Output@GRAD",
        "Input Filter Output@GRAD",
        "Input@GRAD Filter@GRAD",
    )(_conv_grad_grad)


# -- instance_norm -----------------------------------------------------------------------------
@_second(
    "instance_norm_grad",
    "X Scale SavedMean SavedVariance Y@GRAD",
    "X Scale Y@GRAD",
    "X@GRAD Scale@GRAD Bias@GRAD",
)
def instance_norm_grad_grad(
    xp: Any,
    X: Array,
    Scale: Array,
    SavedMean: Array,
    SavedVariance: Array,
    dY: Array,
    ddX: Array,
    ddScale: Array,
    ddBias: Array,
) -> tuple[Array, Array, Array]:
    """With n the standardised rows, i = 1 / std and P q = q - mean(q) - n mean(q n), the first
    gradient is dX = i P(dY Scale); P is its own adjoint.
    """
    shape = (*X.shape[:2], -1)
    inverse = SavedVariance.reshape(*X.shape[:2], 1)
    normal = (X.reshape(shape) - SavedMean.reshape(*X.shape[:2], 1)) * inverse
    dy = dY.reshape(shape)
    scale = xp.ones((X.shape[1], 1), X.dtype) if Scale is None else Scale[:, None]
    a = xp.zeros_like(dy) if ddX is None else ddX.reshape(shape)
    extra = 0 if ddScale is None else ddScale[:, None]

    def projected(q: Array) -> Array:
        inner = (q * normal).mean(axis=2, keepdims=True)
        return q - q.mean(axis=2, keepdims=True) - normal * inner

    out = scale * inverse * projected(a) + extra * normal
    out = out if ddBias is None else out + ddBias[:, None]
    given = dy * scale
    along = (given * normal).mean(axis=2, keepdims=True)
    across = (a * normal).mean(axis=2, keepdims=True)
    form = (a * projected(given)).mean(axis=2, keepdims=True)
    dx = projected(-(a * along + given * across)) * inverse**2 - inverse**2 * normal * form
    dx = dx + inverse * projected(extra * dy)
    dscale = per_channel(xp, a * inverse, projected(dy))
    return dx.reshape(X.shape), dscale, out.reshape(X.shape)
