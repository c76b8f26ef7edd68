"""Cases of operators that few programs use, and of a fusion that has a gradient."""

from typing import Any

import numpy as np

from .case import Case, lod, numbers, whole
from .cases_normalise import _batch_norm, _fixed_norm

Array = Any


def _nll(X: Array, Label: Array, Weight: Array, ignore_index: int, reduction: str) -> Any:
    weight = np.ones(X.shape[1], X.dtype) if Weight is None else Weight
    weights = np.where(Label == ignore_index, 0, weight[Label])
    at = np.expand_dims(Label, 1)
    losses = -np.take_along_axis(X, at, 1)[:, 0] * weights
    total = weights.sum().reshape(1)
    whole = {"none": losses, "sum": losses.sum().reshape(1), "mean": losses.sum() / total}
    return {"Out": whole[reduction], "Total_weight": total}


def _circular(X: Array, Y: Array) -> Array:
    half, width = Y.shape[1] // 2, X.shape[1]
    return np.stack(
        [
            [sum(x[(j + k - half) % width] * y[k] for k in range(len(y))) for j in range(width)]
            for x, y in zip(X, Y, strict=True)
        ]
    ).astype(X.dtype)


def _back(X: Array, Indices: Array) -> Array:
    out = np.zeros((*X.shape[:2], 16), X.dtype)
    for n, c, i, j in np.ndindex(X.shape):
        out[n, c, Indices[n, c, i, j]] = X[n, c, i, j]
    return out.reshape(*X.shape[:2], 4, 4)


def _abn(activated: Any, normalised: Any) -> Any:
    def expected(
        X: Array, Scale: Array, Bias: Array, Mean: Array, Variance: Array, epsilon: float,
        momentum: float, alpha: float, data_layout: str,
    ) -> Any:  # fmt: skip
        given = {"X": X, "Scale": Scale, "Bias": Bias, "Mean": Mean, "Variance": Variance}
        given |= {"epsilon": epsilon, "momentum": momentum, "data_layout": data_layout}
        names = normalised.__code__.co_varnames[: normalised.__code__.co_argcount]
        found = normalised(**{name: given[name] for name in names})
        return {"Y": activated(found["Y"], alpha)}

    return expected


_ABN = {
    "identity": lambda y, a: y,
    "leaky_relu": lambda y, a: np.where(y >= 0, y, a * y),
    "elu": lambda y, a: np.where(y >= 0, y, a * np.expm1(y)),
}

_PLANE = numbers(2, 3, 6, 4)
_LABELS = whole(5, below=3)
_PIXELS = whole(2, 2, 4, below=3)
_NORM = {
    "X": numbers(2, 4, 5, 6),
    "Scale": numbers(4, low=0.5, high=2, seed=3),
    "Bias": numbers(4, seed=4),
    "Mean": numbers(4, seed=5),
    "Variance": numbers(4, low=0.5, high=2, seed=6),
}
_PLACES = np.int32([[[[0, 3], [9, 14]], [[5, 2], [8, 15]]]])
_OFFSETS = np.int32([[1, 1, 0, 2, 1], [2, 1, 0, 2, 3], [0, 0, -1, 1, 2], [2, 0, 0, 2, 3]])
_RANKED = numbers(4, 3)
_PARAMETERS = numbers(12, 2, seed=2)
_TABLE = numbers(6, 3)


def _attended(X: Array, RankOffset: Array, RankParam: Array) -> Array:
    blocks, out = RankParam.reshape(4, 3, 2), np.zeros((4, 2), X.dtype)
    for i, (own, *pairs) in enumerate(RankOffset.tolist()):
        for other, index in zip(pairs[::2], pairs[1::2], strict=True):
            if own > 0 and other > 0:
                out[i] += X[index] @ blocks[(own - 1) * 2 + other - 1]
    return out


def _pyramid(X: Array) -> Array:
    halves = [X[:, :, i : i + 3, j : j + 2] for i in (0, 3) for j in (0, 2)]
    inner = np.stack([part.max((2, 3)) for part in halves], axis=2)
    return np.concatenate([X.max((2, 3)), inner.reshape(len(X), -1)], axis=1)


def _averages(X: Array) -> Array:
    halves = [X[:, :, i : i + 3, j : j + 2] for i in (0, 3) for j in (0, 2)]
    inner = np.stack([part.mean((2, 3)) for part in halves], axis=2)
    return np.concatenate([X.mean((2, 3)), inner.reshape(len(X), -1)], axis=1)


CASES = [
    *(
        Case(
            "nll_loss",
            {"X": numbers(*shape), "Label": labels, "Weight": numbers(3, low=0.2, high=1)},
            _nll,
            {"reduction": kind, "ignore_index": ignored},
            grads=("X",),
            counted=("Out",),
            label=f"{kind}_{ignored}_{len(shape)}",
        )
        for kind in ("none", "mean", "sum")
        for ignored in (-100, 1)
        for shape, labels in (((5, 3), _LABELS), ((2, 3, 2, 4), _PIXELS))
    ),
    Case("nll_loss", {"X": numbers(5, 3), "Label": _LABELS}, _nll, grads=("X",), counted=("Out",)),
    Case("conv_shift", {"X": numbers(3, 7), "Y": numbers(3, 5, seed=1)}, _circular),
    Case("spp", {"X": _PLANE}, _pyramid, {"pyramid_height": 2, "pooling_type": "max"}),
    Case(
        "spp", {"X": _PLANE}, _averages, {"pyramid_height": 2, "pooling_type": "avg"}, label="mean"
    ),
    Case(
        "unpool",
        {"X": numbers(1, 2, 2, 2), "Indices": _PLACES},
        _back,
        {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max"},
    ),
    *(
        Case(
            "inplace_abn",
            _NORM,
            _abn(function, normalised),
            {"activation": name, "alpha": 0.3, **attrs},
            grads=("X", "Scale", "Bias"),
            counted=("Y",),
            label=f"{name}_{label}",
            tolerance=1e-4,
        )
        for name, function in _ABN.items()
        for label, normalised, attrs in (
            ("train", _batch_norm, {}),
            ("global", _fixed_norm, {"use_global_stats": True}),
        )
    ),
    Case(
        "rank_attention",
        {"X": _RANKED, "RankOffset": _OFFSETS, "RankParam": _PARAMETERS},
        _attended,
        {"MaxRank": 2},
        batch=False,
    ),
    *(
        Case(
            "fused_embedding_seq_pool",
            {"W": _TABLE, "Ids": lod(np.array([[1], [4], [1], [0], [5]]), [3, 2])},
            lambda W: np.stack([2 * W[1] + W[4], W[0] + W[5]]),
            {"is_sparse": sparse},
            label="sparse" if sparse else "",
        )
        for sparse in (False, True)
    ),
]
