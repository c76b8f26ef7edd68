"""Elementwise mathematics of one tensor, with the derivative of each function.

A gradient reads the forward operator's X or Out, whichever Fluid's reads. Scalars take the dtype
of the array, so float32 stays float32.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.ir import Block, Operator, VarType, grad_name

from .shapes import same_as
from .special import erf_of, erf_slope
from .table import GradOp, Infer, OpSpec, op

OF_X = GradOp(uses=("X",))
OF_OUT = GradOp(uses=("Out",))
SAME = same_as("X")
FIT = {"Out": "X"}
GRAD_FIT = {"X@GRAD": "Out@GRAD"}


@op("exp", infer=SAME, grad=OF_OUT, inplace=FIT)
def exp(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.exp(X, out=out)


@op("exp_grad", inplace=GRAD_FIT)
def exp_grad(xp: Array, Out: Array, dOut: Array, out: Array = None) -> Array:
    return xp.multiply(dOut, Out, out=out)


@op("sqrt", infer=SAME, grad=OF_OUT, inplace=FIT)
def sqrt(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.sqrt(X, out=out)


@op("sqrt_grad", inplace=GRAD_FIT)
def sqrt_grad(xp: Array, Out: Array, dOut: Array, out: Array = None) -> Array:
    out = xp.divide(dOut, Out, out=out)
    out *= out.dtype.type(0.5)
    return out


@op("rsqrt", infer=SAME, grad=OF_OUT, inplace=FIT)
def rsqrt(xp: Array, X: Array, out: Array = None) -> Array:
    out = xp.sqrt(X, out=out)
    return xp.divide(1, out, out=out)


@op("rsqrt_grad")
def rsqrt_grad(xp: Array, Out: Array, dOut: Array) -> Array:
    return dOut * Out * Out * Out * Out.dtype.type(-0.5)


@op("reciprocal", infer=SAME, grad=OF_OUT, inplace=FIT)
def reciprocal(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.divide(1, X, out=out)


@op("reciprocal_grad")
def reciprocal_grad(xp: Array, Out: Array, dOut: Array) -> Array:
    return -dOut * Out * Out


@op("square", infer=SAME, grad=OF_X, inplace=FIT)
def square(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.multiply(X, X, out=out)


@op("square_grad", inplace=GRAD_FIT)
def square_grad(xp: Array, X: Array, dOut: Array, out: Array = None) -> Array:
    out = xp.multiply(dOut, X, out=out)
    out *= 2
    return out


@op("abs", infer=SAME, grad=OF_X, inplace=FIT)
def absolute(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.abs(X, out=out)


@op("abs_grad")
def abs_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * xp.sign(X)


@op("log", infer=SAME, grad=OF_X, inplace=FIT)
def log(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.log(X, out=out)


@op("log_grad", inplace=GRAD_FIT)
def log_grad(xp: Array, X: Array, dOut: Array, out: Array = None) -> Array:
    return xp.divide(dOut, X, out=out)


@op("log1p", infer=SAME, grad=OF_X, inplace=FIT)
def log1p(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.log1p(X, out=out)


@op("log1p_grad")
def log1p_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut / (1 + X)


@op("sin", infer=SAME, grad=OF_X, inplace=FIT)
def sin(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.sin(X, out=out)


@op("sin_grad")
def sin_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * xp.cos(X)


@op("cos", infer=SAME, grad=OF_X, inplace=FIT)
def cos(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.cos(X, out=out)


@op("cos_grad")
def cos_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return -dOut * xp.sin(X)


@op("asin", infer=SAME, grad=OF_X, inplace=FIT)
def asin(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.arcsin(X, out=out)


@op("asin_grad")
def asin_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut / xp.sqrt(1 - X * X)


@op("acos", infer=SAME, grad=OF_X, inplace=FIT)
def acos(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.arccos(X, out=out)


@op("acos_grad")
def acos_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return -dOut / xp.sqrt(1 - X * X)


@op("atan", infer=SAME, grad=OF_X, inplace=FIT)
def atan(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.arctan(X, out=out)


@op("atan_grad")
def atan_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut / (1 + X * X)


# -- steps: their derivative is zero -----------------------------------------------------------
@op("ceil", infer=SAME, grad=GradOp(), inplace=FIT)
def ceil(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.ceil(X, out=out)


@op("floor", infer=SAME, grad=GradOp(), inplace=FIT)
def floor(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.floor(X, out=out)


@op("round", infer=SAME, grad=GradOp())
def round_away(xp: Array, X: Array) -> Array:
    """Halves go away from zero, as in C."""
    return xp.trunc(X + xp.copysign(X.dtype.type(0.5), X))


def _flat(xp: Array, dOut: Array) -> Array:
    return xp.zeros(dOut.shape, dtype=dOut.dtype)


for _step in ("ceil_grad", "floor_grad", "round_grad"):
    op(_step)(_flat)


# -- functions with attributes -----------------------------------------------------------------
@op("erf", infer=SAME, grad=OF_X)
def erf(xp: Array, X: Array) -> Array:
    return erf_of(xp, X)


@op("erf_grad")
def erf_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * erf_slope(xp, X)


def scale_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The gradient of a scaling is a scaling."""
    attrs = {**op.attrs, "bias": 0.0, "bias_after_scale": True}
    return [_scaling(op, attrs)]


def _sign_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """A gradient of zeros."""
    return [_scaling(op, {**op.attrs, "scale": 0.0})]


def _scaling(op: Operator, attrs: dict[str, Any]) -> OpSpec:
    inputs = {"X": [grad_name(n) for n in op.output("Out")], "ScaleTensor": op.input("ScaleTensor")}
    return OpSpec("scale", inputs, {"Out": [grad_name(n) for n in op.input("X")]}, attrs)


@op("scale", infer=SAME, grad=scale_gradient, inplace=FIT, out="Out")
def scale(
    xp: Array,
    X: Array,
    ScaleTensor: Array,
    scale: float,
    bias: float,
    bias_after_scale: bool,
    out: Array = None,
) -> Array:
    kind = X.dtype.type
    factor = kind(scale) if ScaleTensor is None else ScaleTensor.reshape(())
    if not bias:
        return xp.multiply(X, factor, out=out)
    if not bias_after_scale:
        return xp.multiply(xp.add(X, kind(bias), out=out), factor, out=out)
    out = xp.multiply(X, factor, out=out)
    out += kind(bias)
    return out


@op("sign", infer=SAME, grad=_sign_gradient, inplace=FIT)
def sign(xp: Array, X: Array, out: Array = None) -> Array:
    return xp.sign(X, out=out)


@op("pow", infer=SAME, grad=GradOp(uses=("X", "FactorTensor"), wrt=("X",)))
def power(xp: Array, X: Array, FactorTensor: Array, factor: float) -> Array:
    return xp.power(X, _factor(X, FactorTensor, factor))


@op("pow_grad")
def pow_grad(xp: Array, X: Array, FactorTensor: Array, dOut: Array, factor: float) -> Array:
    exponent = _factor(X, FactorTensor, factor)
    return dOut * exponent * xp.power(X, exponent - 1)


def _factor(x: Array, tensor: Array, factor: float) -> Array:
    return x.dtype.type(factor) if tensor is None else tensor.reshape(()).astype(x.dtype)


@op("clip", infer=SAME, grad=GradOp(uses=("X", "Min", "Max"), wrt=("X",)), inplace=FIT, out="Out")
def clip(
    xp: Array, X: Array, Min: Array, Max: Array, min: float, max: float, out: Array = None
) -> Array:
    low, high = _limits(X, Min, Max, min, max)
    out = xp.maximum(X, low, out=out)
    return xp.minimum(out, high, out=out)


@op("clip_grad")
def clip_grad(
    xp: Array, X: Array, Min: Array, Max: Array, dOut: Array, min: float, max: float
) -> Array:
    low, high = _limits(X, Min, Max, min, max)
    return dOut * ((low < X) & (high > X))


def _limits(x: Array, low: Array, high: Array, least: float, most: float) -> tuple[Array, Array]:
    kind = x.dtype.type
    return (
        kind(least) if low is None else low.reshape(()),
        kind(most) if high is None else high.reshape(()),
    )


def _count_back(op: Operator, block: Block) -> list[OpSpec]:
    """A loop's gradient runs its steps in reverse, and its counter must follow."""
    outputs = {"Out": op.input("X")}
    return [OpSpec("increment", {"X": op.output("Out")}, outputs, {"step": -op.attrs["step"]})]


@op("increment", infer=SAME, grad=_count_back, inplace=FIT)
def increment(xp: Array, X: Array, step: float, out: Array = None) -> Array:
    return xp.add(X, X.dtype.type(step), out=out)


def _cast_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"), dtype=VarType(ctx.attr("out_dtype")))


def _cast_gradient(op: Operator, block: Block) -> list[OpSpec]:
    attrs = {**op.attrs, "in_dtype": op.attrs["out_dtype"], "out_dtype": op.attrs["in_dtype"]}
    inputs = {"X": [grad_name(n) for n in op.output("Out")]}
    return [OpSpec("cast", inputs, {"Out": [grad_name(n) for n in op.input("X")]}, attrs)]


@op("cast", infer=_cast_rule, grad=_cast_gradient)
def cast(xp: Array, X: Array, out_dtype: str) -> Array:
    return X.astype(out_dtype)
