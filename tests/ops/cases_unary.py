"""Cases of elementwise mathematics and activations: one row each, with its formula in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Array, Case, numbers

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _round(x: Array) -> Array:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


# name: (formula, lowest, highest input)
_PLAIN: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "abs": (np.abs, -1, 1),
    "acos": (np.arccos, -0.9, 0.9),
    "asin": (np.arcsin, -0.9, 0.9),
    "atan": (np.arctan, -2, 2),
    "ceil": (np.ceil, -2.2, 2.1),
    "cos": (np.cos, -2, 2),
    "exp": (np.exp, -2, 2),
    "floor": (np.floor, -2.2, 2.1),
    "log": (np.log, 0.2, 3),
    "log1p": (np.log1p, -0.5, 3),
    "logsigmoid": (lambda x: np.log(_sigmoid(x)), -3, 3),
    "reciprocal": (lambda x: 1 / x, 0.5, 3),
    "relu": (lambda x: x * (x > 0), -1, 1.1),
    "round": (_round, -2.3, 2.4),
    "rsqrt": (lambda x: x**-0.5, 0.3, 3),
    "sigmoid": (_sigmoid, -3, 3),
    "sign": (np.sign, -1, 1.1),
    "sin": (np.sin, -2, 2),
    "softplus": (lambda x: np.log(1 + np.exp(x)), -3, 3),
    "softsign": (lambda x: x / (1 + np.abs(x)), -3, 3.1),
    "sqrt": (np.sqrt, 0.3, 3),
    "square": (lambda x: x**2, -2, 2),
    "tanh": (np.tanh, -2, 2),
    "tanh_shrink": (lambda x: x - np.tanh(x), -2, 2),
    "erf": (_erf, -3, 3),
    "mish": (lambda x: x * np.tanh(np.log(1 + np.exp(x))), -3, 3),
}

Formula = Callable[..., Array]
# name: (formula of X and attributes, attributes)
_WITH_ATTRS: list[tuple[str, Formula, dict[str, Any]]] = [
    ("brelu", lambda X, t_min, t_max: np.clip(X, t_min, t_max), {"t_min": -0.5, "t_max": 0.7}),
    ("elu", lambda X, alpha: np.where(X > 0, X, alpha * (np.exp(X) - 1)), {"alpha": 0.7}),
    ("gelu", lambda X: X * 0.5 * (1 + _erf(X / np.sqrt(2))), {}),
    (
        "gelu",
        lambda X: 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
        {"approximate": True},
    ),
    ("hard_shrink", lambda X, threshold: X * (np.abs(X) > threshold), {"threshold": 0.41}),
    (
        "hard_sigmoid",
        lambda X, slope, offset: np.clip(slope * X + offset, 0, 1),
        {"slope": 0.7, "offset": 0.4},
    ),
    (
        "hard_swish",
        lambda X, threshold, scale, offset: X * np.clip(X + offset, 0, threshold) / scale,
        {"threshold": 1.0, "scale": 2.0, "offset": 0.5},
    ),
    ("leaky_relu", lambda X, alpha: np.where(X > 0, X, alpha * X), {"alpha": 0.1}),
    ("pow", lambda X, factor: X**factor, {"factor": 3.0}),
    ("relu6", lambda X, threshold: np.clip(X, 0, threshold), {"threshold": 0.61}),
    ("scale", lambda X, scale, bias: X * scale + bias, {"scale": 2.0, "bias": 1.0}),
    (
        "scale",
        lambda X, scale, bias: (X + bias) * scale,
        {"scale": 2.0, "bias": 1.0, "bias_after_scale": False},
    ),
    (
        "selu",
        lambda X, scale, alpha: scale * np.where(X > 0, X, alpha * (np.exp(X) - 1)),
        {},
    ),
    (
        "soft_relu",
        lambda X, threshold: np.log(1 + np.exp(np.clip(X, -threshold, threshold))),
        {"threshold": 0.9},
    ),
    (
        "softshrink",
        lambda X: np.where(X > 0.3, X - 0.3, np.where(X < -0.3, X + 0.3, 0)),
        {"lambda": 0.3},
    ),
    ("stanh", lambda X, scale_a, scale_b: scale_b * np.tanh(scale_a * X), {}),
    ("swish", lambda X, beta: X * _sigmoid(beta * X), {"beta": 2.0}),
    ("thresholded_relu", lambda X, threshold: X * (threshold < X), {"threshold": 0.21}),
    ("clip", lambda X, min, max: np.clip(X, min, max), {"min": -0.41, "max": 0.6}),
    ("increment", lambda X, step: X + step, {"step": 2.0}),
    ("clip_by_norm", lambda X, max_norm: X * max_norm / np.sqrt((X**2).sum()), {"max_norm": 0.5}),
    ("clip_by_norm", lambda X: X, {"max_norm": 50.0}),
]

CASES = [
    Case(name, {"X": numbers(3, 4, low=low, high=high)}, lambda X, f=formula: f(X))
    for name, (formula, low, high) in _PLAIN.items()
]
CASES += [
    Case(
        name,
        {"X": numbers(3, 4)},
        formula,
        attrs,
        grads=() if name in ("increment", "clip_by_norm") else None,
        label="_".join(attrs),
    )
    for name, formula, attrs in _WITH_ATTRS
]
CASES += [
    Case(
        "sigmoid",
        {"X": np.array([[-100.0, 100.0]], np.float32)},
        np.array([[0.0, 1.0]], np.float32),
        grads=(),
        label="far",
    ),
    Case(
        "softplus",
        {"X": np.array([[-100.0, 100.0]], np.float32)},
        np.array([[0.0, 100.0]], np.float32),
        grads=(),
        label="far",
    ),
    Case(
        "scale",
        {"X": numbers(3, 4), "ScaleTensor": np.float32([2.5])},
        lambda X: X * 2.5,
        grads=("X",),
        label="tensor",
    ),
    Case(
        "pow",
        {"X": numbers(3, 4, low=0.2), "FactorTensor": np.float32([2.5])},
        lambda X: X**2.5,
        label="tensor",
    ),
    Case(
        "clip",
        {"X": numbers(3, 4), "Min": np.float32([-0.3]), "Max": np.float32([0.31])},
        lambda X: np.clip(X, -0.3, 0.31),
        label="tensors",
    ),
    Case(
        "cast",
        {"X": numbers(3, 4)},
        lambda X: X.astype(np.float64),
        {"in_dtype": 5, "out_dtype": 6},
    ),
    Case(
        "cast",
        {"X": numbers(3, 4, high=5.0)},
        lambda X: X.astype(np.int32),
        {"in_dtype": 5, "out_dtype": 2},
        grads=(),
        label="whole",
    ),
    Case("square", {"X": np.array([[3, -4]])}, lambda X: X * X, label="whole"),
]
