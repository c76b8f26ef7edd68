"""Cases of normalisation, against references that loop."""

from typing import Any

import numpy as np

from .case import Array, Case, numbers


def _normal(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    mean = x.mean(axis=axes, keepdims=True)
    variance = x.var(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon), mean, variance


def _batch_norm(
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    epsilon: float,
    momentum: float,
) -> dict[str, Array]:
    axes = (0, *range(2, X.ndim))
    normal, mean, variance = _normal(X.astype("float64"), axes, epsilon)
    shape = (1, -1, *[1] * (X.ndim - 2))
    return {
        "Y": normal * Scale.reshape(shape) + Bias.reshape(shape),
        "MeanOut": Mean * momentum + mean.reshape(-1) * (1 - momentum),
        "VarianceOut": Variance * momentum + variance.reshape(-1) * (1 - momentum),
        "SavedMean": mean.reshape(-1),
        "SavedVariance": 1 / np.sqrt(variance.reshape(-1) + epsilon),
    }


def _fixed_norm(
    X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array, epsilon: float
) -> dict[str, Array]:
    shape = (1, -1, 1, 1)
    normal = (X - Mean.reshape(shape)) / np.sqrt(Variance.reshape(shape) + epsilon)
    return {"Y": normal * Scale.reshape(shape) + Bias.reshape(shape), "MeanOut": Mean}


def _layer_norm(X: Array, Scale: Array, Bias: Array, begin_norm_axis: int, epsilon: float) -> Any:
    normal, mean, variance = _normal(X, tuple(range(begin_norm_axis, X.ndim)), epsilon)
    rest = X.shape[begin_norm_axis:]
    y = normal * (1 if Scale is None else Scale.reshape(rest))
    y = y + (0 if Bias is None else Bias.reshape(rest))
    return {"Y": y, "Mean": mean.reshape(-1), "Variance": variance.reshape(-1)}


def _group_norm(X: Array, Scale: Array, Bias: Array, groups: int, epsilon: float) -> Any:
    parts = X.reshape(len(X), groups, -1)
    normal, mean, variance = _normal(parts, (2,), epsilon)
    shape = (1, -1, 1, 1)
    y = normal.reshape(X.shape)
    if Scale is not None:
        y = y * Scale.reshape(shape) + Bias.reshape(shape)
    return {"Y": y, "Mean": mean[..., 0], "Variance": variance[..., 0]}


def _instance_norm(X: Array, Scale: Array, Bias: Array, epsilon: float) -> Any:
    normal, mean, variance = _normal(X, (2, 3), epsilon)
    shape = (1, -1, 1, 1)
    return {
        "Y": normal * Scale.reshape(shape) + Bias.reshape(shape),
        "SavedMean": mean.reshape(-1),
        "SavedVariance": 1 / np.sqrt(variance.reshape(-1) + epsilon),
    }


def _lrn(X: Array, n: int, k: float, alpha: float, beta: float) -> dict[str, Array]:
    mid = np.full(X.shape, k)
    before = (n - 1) // 2
    for c in range(X.shape[1]):
        near = X[:, max(c - before, 0) : c - before + n]
        mid[:, c] += alpha * (near.astype("float64") ** 2).sum(axis=1)
    return {"Out": X * mid**-beta, "MidOut": mid}


_image = numbers(2, 4, 5, 6)
_channels = {"Scale": numbers(4, seed=3), "Bias": numbers(4, seed=4)}
_running = {"Mean": numbers(4, seed=5), "Variance": numbers(4, low=0.5, high=2, seed=6)}
_norm = {"X": _image, **_channels}

CASES = [
    Case(
        "batch_norm",
        {**_norm, **_running},
        _batch_norm,
        {"momentum": 0.8},
        grads=("X", "Scale", "Bias"),
        without=("MeanOut", "VarianceOut"),
        label="train",
        tolerance=1e-4,
    ),
    Case(
        "batch_norm",
        {**_norm, **_running},
        _fixed_norm,
        {"use_global_stats": True},
        grads=("X", "Scale", "Bias"),
        without=("MeanOut", "VarianceOut"),
        label="global",
        tolerance=1e-4,
    ),
    Case(
        "batch_norm",
        {**_norm, **_running},
        _fixed_norm,
        {"is_test": True},
        grads=(),
        label="test",
        tolerance=1e-4,
    ),
    Case(
        "layer_norm",
        {"X": numbers(3, 4, 5), "Scale": numbers(20), "Bias": numbers(20, seed=2)},
        _layer_norm,
        {"begin_norm_axis": 1},
        tolerance=1e-4,
    ),
    Case(
        "layer_norm",
        {"X": numbers(3, 4, 5)},
        _layer_norm,
        {"begin_norm_axis": 2},
        grads=("X",),
        label="bare",
        tolerance=1e-4,
    ),
    Case(
        "group_norm",
        _norm,
        _group_norm,
        {"groups": 2, "data_layout": "NCHW"},
        tolerance=1e-4,
        grads=("X", "Scale", "Bias"),
    ),
    Case("instance_norm", _norm, _instance_norm, tolerance=1e-4, grads=("X", "Scale", "Bias")),
    Case(
        "data_norm",
        {
            "X": numbers(3, 4),
            "BatchSize": np.full(4, 10, "float32"),
            "BatchSum": numbers(4, seed=1),
            "BatchSquareSum": numbers(4, low=5, high=20, seed=2),
        },
        lambda X, BatchSize, BatchSum, BatchSquareSum: {
            "Y": (X - BatchSum / BatchSize) * np.sqrt(BatchSize / BatchSquareSum),
            "Means": BatchSum / BatchSize,
        },
        grads=("X",),
        tolerance=1e-4,
    ),
    Case("lrn", {"X": _image}, _lrn, {"n": 3, "alpha": 0.3}, without=("MidOut",), tolerance=1e-4),
]
