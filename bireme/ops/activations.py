"""Activations, with the derivative of each.

A gradient reads the forward operator's X or Out, whichever Fluid's reads. Scalars take the dtype
of the array, so float32 stays float32.
"""

import math
from functools import partial

from bireme.arrays.namespaces import Array

from .special import erf_of, erf_slope
from .table import op
from .tiles import applied
from .unary import FIT, GRAD_FIT, OF_OUT, OF_X, SAME


@op("relu", infer=SAME, grad=OF_OUT, inplace=FIT)
def relu(xp: Array, X: Array, out: Array = None) -> Array:
    return applied(xp, xp.maximum, X, 0, out)


@op("relu_grad", inplace=GRAD_FIT, compiled="activations")
def relu_grad(xp: Array, Out: Array, dOut: Array, out: Array = None) -> Array:
    return applied(xp, lambda g, y, out: xp.multiply(g, y > 0, out=out), dOut, Out, out)


@op("tanh", infer=SAME, grad=OF_OUT, inplace=FIT)
def tanh(xp: Array, X: Array, out: Array = None) -> Array:
    return applied(xp, lambda x, _, out: xp.tanh(x, out=out), X, 0, out)


@op("tanh_grad", inplace={"X@GRAD": "Out"})
def tanh_grad(xp: Array, Out: Array, dOut: Array, out: Array = None) -> Array:
    return applied(xp, partial(_tanh_slope, xp), Out, dOut, out)


def _tanh_slope(xp: Array, y: Array, dy: Array, out: Array = None) -> Array:
    out = xp.multiply(y, y, out=out)
    xp.subtract(1, out, out=out)
    return xp.multiply(out, dy, out=out)


def sigmoid_of(xp: Array, x: Array, out: Array = None) -> Array:
    """1 / (1 + exp(-x)); exact at both ends, without overflow: (1 + tanh(x/2)) / 2."""
    out = xp.multiply(x, x.dtype.type(0.5), out=out)
    xp.tanh(out, out=out)
    out += 1
    out *= x.dtype.type(0.5)
    return out


@op("sigmoid", infer=SAME, grad=OF_OUT, inplace=FIT)
def sigmoid(xp: Array, X: Array, out: Array = None) -> Array:
    return sigmoid_of(xp, X, out)


@op("sigmoid_grad", inplace={"X@GRAD": "Out"})
def sigmoid_grad(xp: Array, Out: Array, dOut: Array, out: Array = None) -> Array:
    out = xp.subtract(Out, Out * Out, out=out)
    out *= dOut
    return out


@op("leaky_relu", infer=SAME, grad=OF_OUT)
def leaky_relu(xp: Array, X: Array, alpha: float) -> Array:
    return xp.where(X > 0, X, X * X.dtype.type(alpha))


@op("leaky_relu_grad")
def leaky_relu_grad(xp: Array, Out: Array, dOut: Array, alpha: float) -> Array:
    return xp.where(Out > 0, dOut, dOut * dOut.dtype.type(alpha))


@op("relu6", infer=SAME, grad=OF_OUT, inplace=FIT)
def relu6(xp: Array, X: Array, threshold: float, out: Array = None) -> Array:
    out = xp.maximum(X, 0, out=out)
    return xp.minimum(out, X.dtype.type(threshold), out=out)


@op("relu6_grad", inplace=GRAD_FIT)
def relu6_grad(xp: Array, Out: Array, dOut: Array, threshold: float, out: Array = None) -> Array:
    return xp.multiply(dOut, (Out > 0) & (Out < Out.dtype.type(threshold)), out=out)


@op("hard_sigmoid", infer=SAME, grad=OF_OUT)
def hard_sigmoid(xp: Array, X: Array, slope: float, offset: float) -> Array:
    return xp.clip(X * X.dtype.type(slope) + X.dtype.type(offset), 0, 1)


@op("hard_sigmoid_grad")
def hard_sigmoid_grad(xp: Array, Out: Array, dOut: Array, slope: float, offset: float) -> Array:
    return dOut * ((Out > 0) & (Out < 1)) * dOut.dtype.type(slope)


@op("soft_relu", infer=SAME, grad=OF_OUT)
def soft_relu(xp: Array, X: Array, threshold: float) -> Array:
    limit = X.dtype.type(threshold)
    return xp.log1p(xp.exp(xp.clip(X, -limit, limit)))


@op("soft_relu_grad")
def soft_relu_grad(xp: Array, Out: Array, dOut: Array, threshold: float) -> Array:
    low, high = (Out.dtype.type(math.log1p(math.exp(t))) for t in (-threshold, threshold))
    return dOut * (1 - xp.exp(-Out)) * ((Out > low) & (Out < high))


@op("selu", infer=SAME, grad=OF_OUT)
def selu(xp: Array, X: Array, scale: float, alpha: float) -> Array:
    kind = X.dtype.type
    return kind(scale) * xp.where(X > 0, X, kind(alpha) * xp.expm1(xp.minimum(X, 0)))


@op("selu_grad")
def selu_grad(xp: Array, Out: Array, dOut: Array, scale: float, alpha: float) -> Array:
    kind = Out.dtype.type
    return dOut * xp.where(Out > 0, kind(scale), Out + kind(scale * alpha))


@op("logsigmoid", infer=SAME, grad=OF_X)
def logsigmoid(xp: Array, X: Array) -> Array:
    return xp.minimum(X, 0) - xp.log1p(xp.exp(-xp.abs(X)))


@op("logsigmoid_grad")
def logsigmoid_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * sigmoid_of(xp, -X)


@op("softplus", infer=SAME, grad=OF_X)
def softplus(xp: Array, X: Array) -> Array:
    return xp.maximum(X, 0) + xp.log1p(xp.exp(-xp.abs(X)))


@op("softplus_grad")
def softplus_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * sigmoid_of(xp, X)


@op("softsign", infer=SAME, grad=OF_X)
def softsign(xp: Array, X: Array) -> Array:
    return X / (1 + xp.abs(X))


@op("softsign_grad")
def softsign_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut / xp.square(1 + xp.abs(X))


@op("tanh_shrink", infer=SAME, grad=OF_X)
def tanh_shrink(xp: Array, X: Array) -> Array:
    return X - xp.tanh(X)


@op("tanh_shrink_grad")
def tanh_shrink_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut * xp.square(xp.tanh(X))


_ERF_SLOPE = 2 / math.sqrt(math.pi)


@op("swish", infer=SAME, grad=OF_X)
def swish(xp: Array, X: Array, beta: float) -> Array:
    return X * sigmoid_of(xp, X * X.dtype.type(beta))


@op("swish_grad")
def swish_grad(xp: Array, X: Array, dOut: Array, beta: float) -> Array:
    kind = X.dtype.type
    gate = sigmoid_of(xp, X * kind(beta))
    return dOut * (gate + kind(beta) * X * gate * (1 - gate))


@op("mish", infer=SAME, grad=OF_X)
def mish(xp: Array, X: Array) -> Array:
    return X * xp.tanh(softplus(xp, X))


@op("mish_grad")
def mish_grad(xp: Array, X: Array, dOut: Array) -> Array:
    gate = xp.tanh(softplus(xp, X))
    return dOut * (gate + X * (1 - gate * gate) * sigmoid_of(xp, X))


_CUBE = 0.044715
_ROOT = math.sqrt(2 / math.pi)


@op("gelu", infer=SAME, grad=OF_X)
def gelu(xp: Array, X: Array, approximate: bool) -> Array:
    kind = X.dtype.type
    if approximate:
        gate = xp.tanh(kind(_ROOT) * (X + kind(_CUBE) * X * X * X))
    else:
        gate = erf_of(xp, X * kind(math.sqrt(0.5)))
    return kind(0.5) * X * (1 + gate)


@op("gelu_grad")
def gelu_grad(xp: Array, X: Array, dOut: Array, approximate: bool) -> Array:
    kind = X.dtype.type
    if approximate:
        gate = xp.tanh(kind(_ROOT) * (X + kind(_CUBE) * X * X * X))
        slope = (1 - gate * gate) * kind(_ROOT) * (1 + kind(3 * _CUBE) * X * X)
    else:
        scaled = X * kind(math.sqrt(0.5))
        gate = erf_of(xp, scaled)
        slope = erf_slope(xp, scaled) * kind(math.sqrt(0.5))
    return dOut * kind(0.5) * (1 + gate + X * slope)


@op("elu", infer=SAME, grad=OF_X)
def elu(xp: Array, X: Array, alpha: float) -> Array:
    return xp.where(X > 0, X, X.dtype.type(alpha) * xp.expm1(xp.minimum(X, 0)))


@op("elu_grad")
def elu_grad(xp: Array, X: Array, dOut: Array, alpha: float) -> Array:
    return dOut * xp.where(X > 0, X.dtype.type(1), X.dtype.type(alpha) * xp.exp(xp.minimum(X, 0)))


@op("brelu", infer=SAME, grad=OF_X, inplace=FIT)
def brelu(xp: Array, X: Array, t_min: float, t_max: float, out: Array = None) -> Array:
    out = xp.maximum(X, X.dtype.type(t_min), out=out)
    return xp.minimum(out, X.dtype.type(t_max), out=out)


@op("brelu_grad")
def brelu_grad(xp: Array, X: Array, dOut: Array, t_min: float, t_max: float) -> Array:
    return dOut * ((X.dtype.type(t_min) < X) & (X.dtype.type(t_max) > X))


@op("hard_shrink", infer=SAME, grad=OF_X)
def hard_shrink(xp: Array, X: Array, threshold: float) -> Array:
    return X * (xp.abs(X) > X.dtype.type(threshold))


@op("hard_shrink_grad")
def hard_shrink_grad(xp: Array, X: Array, dOut: Array, threshold: float) -> Array:
    return dOut * (xp.abs(X) > X.dtype.type(threshold))


@op("softshrink", infer=SAME, grad=OF_X)
def softshrink(xp: Array, X: Array, lambda_: float) -> Array:
    return xp.sign(X) * xp.maximum(xp.abs(X) - X.dtype.type(lambda_), 0)


@op("softshrink_grad")
def softshrink_grad(xp: Array, X: Array, dOut: Array, lambda_: float) -> Array:
    return dOut * (xp.abs(X) > X.dtype.type(lambda_))


@op("thresholded_relu", infer=SAME, grad=OF_X)
def thresholded_relu(xp: Array, X: Array, threshold: float) -> Array:
    return X * (X.dtype.type(threshold) < X)


@op("thresholded_relu_grad")
def thresholded_relu_grad(xp: Array, X: Array, dOut: Array, threshold: float) -> Array:
    return dOut * (X.dtype.type(threshold) < X)


@op("hard_swish", infer=SAME, grad=OF_X)
def hard_swish(xp: Array, X: Array, threshold: float, scale: float, offset: float) -> Array:
    kind = X.dtype.type
    return X * xp.clip(X + kind(offset), 0, kind(threshold)) / kind(scale)


@op("hard_swish_grad")
def hard_swish_grad(
    xp: Array, X: Array, dOut: Array, threshold: float, scale: float, offset: float
) -> Array:
    kind = X.dtype.type
    moved = X + kind(offset)
    inside = (moved > 0) & (moved < kind(threshold))
    return dOut * (xp.clip(moved, 0, kind(threshold)) + inside * X) / kind(scale)


@op("stanh", infer=SAME, grad=OF_X)
def stanh(xp: Array, X: Array, scale_a: float, scale_b: float) -> Array:
    return X.dtype.type(scale_b) * xp.tanh(X.dtype.type(scale_a) * X)


@op("stanh_grad")
def stanh_grad(xp: Array, X: Array, dOut: Array, scale_a: float, scale_b: float) -> Array:
    bent = xp.tanh(X.dtype.type(scale_a) * X)
    return dOut * X.dtype.type(scale_a * scale_b) * (1 - bent * bent)
