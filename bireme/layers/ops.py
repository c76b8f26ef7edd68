"""Activations and elementwise mathematics: one layer per operator, made from the rows below."""

from typing import Any

from bireme.ir import Variable

from .single import append, checked, unary

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "brelu",
    "ceil",
    "cos",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "log1p",
    "logsigmoid",
    "mish",
    "pow",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "scale",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "soft_relu",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "stanh",
    "swish",
    "tanh",
    "tanh_shrink",
    "thresholded_relu",
]


abs = unary("abs", "|x|")
acos = unary("acos", "The arc cosine of x")
asin = unary("asin", "The arc sine of x")
atan = unary("atan", "The arc tangent of x")
ceil = unary("ceil", "The least whole number not below x")
cos = unary("cos", "The cosine of x")
exp = unary("exp", "e to the power x")
floor = unary("floor", "The greatest whole number not above x")
log = unary("log", "The natural logarithm of x")
logsigmoid = unary("logsigmoid", "log(1 / (1 + exp(-x)))")
reciprocal = unary("reciprocal", "1 / x")
relu = unary("relu", "max(x, 0)")
round = unary("round", "The nearest whole number; halves go away from zero")
rsqrt = unary("rsqrt", "1 / sqrt(x)")
sigmoid = unary("sigmoid", "1 / (1 + exp(-x))")
sin = unary("sin", "The sine of x")
softplus = unary("softplus", "log(1 + exp(x))")
softsign = unary("softsign", "x / (1 + |x|)")
sqrt = unary("sqrt", "The square root of x")
square = unary("square", "x * x")
tanh = unary("tanh", "The hyperbolic tangent of x")
tanh_shrink = unary("tanh_shrink", "x - tanh(x)")

brelu = unary("brelu", "min(max(x, t_min), t_max)", t_min=0.0, t_max=24.0)
elu = unary("elu", "x where positive, else alpha * (exp(x) - 1)", alpha=1.0)
hard_sigmoid = unary("hard_sigmoid", "min(max(slope * x + offset, 0), 1)", slope=0.2, offset=0.5)
hard_swish = unary(
    "hard_swish",
    "x * min(max(x + offset, 0), threshold) / scale",
    threshold=6.0,
    scale=6.0,
    offset=3.0,
)
leaky_relu = unary("leaky_relu", "x where positive, else alpha * x", alpha=0.02)
relu6 = unary("relu6", "min(max(x, 0), threshold)", threshold=6.0)
soft_relu = unary("soft_relu", "log(1 + exp(x)), x kept within threshold", threshold=40.0)
stanh = unary("stanh", "scale_b * tanh(scale_a * x)", scale_a=0.67, scale_b=1.7159)
swish = unary("swish", "x / (1 + exp(-beta * x))", beta=1.0)
mish = unary("mish", "x * tanh(log(1 + exp(x)))", threshold=20)
sign = unary("sign", "-1, 0 or 1, the sign of x")


def gelu(x: Variable, approximate: bool = False) -> Variable:
    """x times the probability that a standard normal number is below x, exact or by tanh."""
    return append("gelu", {"X": x}, {"approximate": approximate})


def erf(x: Variable) -> Variable:
    """The error function of x."""
    return append("erf", {"X": x})


def log1p(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """log(1 + x), exact for small x."""
    return append("log1p", {"X": x}, out=out, name=name)


def hard_shrink(x: Variable, threshold: float | None = None) -> Variable:
    """x where |x| is above `threshold` (0.5), else 0."""
    return append("hard_shrink", {"X": x}, {"threshold": threshold})


def softshrink(x: Variable, alpha: float | None = None) -> Variable:
    """x moved towards zero by `alpha` (0.5), and 0 where it would change its sign."""
    return append("softshrink", {"X": x}, {"lambda": alpha})


def thresholded_relu(x: Variable, threshold: float | None = None) -> Variable:
    """x where it is above `threshold` (1), else 0."""
    return append("thresholded_relu", {"X": x}, {"threshold": threshold})


def selu(
    x: Variable, scale: float | None = None, alpha: float | None = None, name: str | None = None
) -> Variable:
    """scale * x where positive, else scale * alpha * (exp(x) - 1)."""
    return append("selu", {"X": x}, {"scale": scale, "alpha": alpha}, name=name)


def pow(x: Variable, factor: Any = 1.0, name: str | None = None) -> Variable:
    """x to the power `factor`, a number or a variable with one element."""
    checked(x, "pow", "x")
    if isinstance(factor, Variable):
        return append("pow", {"X": x, "FactorTensor": factor}, name=name)
    return append("pow", {"X": x}, {"factor": factor}, name=name)


def scale(
    x: Variable,
    scale: Any = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """scale * x + bias, or scale * (x + bias)."""
    inputs, attrs = {"X": x}, {"bias": float(bias), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        inputs["ScaleTensor"] = scale
    else:
        attrs["scale"] = float(scale)
    return append("scale", inputs, attrs, name=name, act=act)
