"""Cases of softmax and the cross entropies."""

import numpy as np

from .case import Array, Case, numbers, whole


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _nll(p: Array, label: Array) -> Array:
    return -np.log(np.take_along_axis(p, label, -1))


_X = numbers(4, 5, low=-2, high=2)
_P = _softmax(_X)
_SOFT = _softmax(numbers(4, 5, seed=1))
_ID = whole(4, 1, below=5)
_CUBE = numbers(2, 3, 4, low=-2, high=2)
_ID3 = whole(2, 1, 4, below=3, seed=3)


def _with_softmax(logits: Array, label: Array, axis: int = -1) -> dict[str, Array]:
    soft = _softmax(logits, axis)
    return {"Loss": -np.log(np.take_along_axis(soft, label, axis)), "Softmax": soft}


def _ignored(loss: Array, label: Array, ignore: int) -> Array:
    return np.where(label == ignore, 0, loss)


_OUT = _ID.copy()
_OUT[1] = -100

CASES = [
    Case("softmax", {"X": _X}, _P),
    Case("softmax", {"X": _CUBE}, _softmax(_CUBE, 1), {"axis": 1}, label="axis"),
    Case(
        "softmax",
        {"X": _X * 500},
        lambda X: _softmax(X.astype(np.float64)),
        grads=(),
        label="large",
    ),
    Case(
        "cross_entropy2",
        {"X": _P, "Label": _ID},
        {"Y": _nll(_P, _ID)},
        without=("MatchX", "XShape"),
    ),
    Case(
        "cross_entropy2",
        {"X": _P, "Label": _OUT},
        {"Y": _ignored(_nll(_P, _ID), _OUT, -100)},
        without=("MatchX", "XShape"),
        label="ignored",
    ),
    Case("cross_entropy", {"X": _P, "Label": _ID}, _nll(_P, _ID)),
    Case(
        "cross_entropy",
        {"X": _P, "Label": _SOFT},
        -(_SOFT * np.log(_P)).sum(1, keepdims=True),
        {"soft_label": True},
        grads=("X",),
        label="soft",
    ),
    Case("softmax_with_cross_entropy", {"Logits": _X, "Label": _ID}, _with_softmax(_X, _ID)),
    Case(
        "softmax_with_cross_entropy",
        {"Logits": _X, "Label": _OUT},
        {"Loss": _ignored(_with_softmax(_X, _ID)["Loss"], _OUT, -100)},
        label="ignored",
    ),
    Case(
        "softmax_with_cross_entropy",
        {"Logits": _CUBE, "Label": _ID3},
        _with_softmax(_CUBE, _ID3, 1),
        {"axis": 1},
        label="axis",
    ),
    Case(
        "softmax_with_cross_entropy",
        {"Logits": _X, "Label": _SOFT},
        {"Loss": -(_SOFT * np.log(_P)).sum(1, keepdims=True), "Softmax": _P},
        {"soft_label": True},
        label="soft",
    ),
]
