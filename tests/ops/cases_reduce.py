"""Cases of sums, means, extremes and norms."""

from typing import Any

import numpy as np

from .case import Case, numbers, rows

_X = numbers(2, 3, 4, low=0.3, high=2.0)
_REDUCE = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
}
_BOOLS = {"reduce_all": np.all, "reduce_any": np.any}

CASES = []
_f: Any
for _name, _f in _REDUCE.items():
    CASES += [
        Case(_name, {"X": _X}, np.array([_f(_X)]), {"reduce_all": True}, label="all"),
        Case(_name, {"X": _X}, _f(_X, 0), label="first"),
        Case(_name, {"X": _X}, _f(_X, 1), {"dim": [1]}, label="middle"),
        Case(
            _name,
            {"X": _X},
            _f(_X, (0, 2), keepdims=True),
            {"dim": [-1, 0], "keep_dim": True},
            label="keep",
        ),
        Case(
            _name,
            {"X": _X},
            _f(_X, keepdims=True),
            {"dim": [0], "keep_dim": True, "reduce_all": True},
            label="all_keep",
        ),
        Case(_name, {"X": _X[0, 0]}, np.array([_f(_X[0, 0])]), label="vector"),
    ]
for _name, _g in _BOOLS.items():
    CASES += [
        Case(_name, {"X": _X > 1}, _g(_X > 1, 1), {"dim": [1]}),
        Case(_name, {"X": _X > 1}, np.array([_g(_X > 1)]), {"reduce_all": True}, label="all"),
    ]
CASES += [
    Case("mean", {"X": _X}, np.array([_X.mean()])),
    Case("squared_l2_norm", {"X": _X}, np.array([(_X**2).sum()])),
    Case("l1_norm", {"X": _X - 1.1}, np.array([np.abs(_X - 1.1).sum()])),
    Case("sum", {"X": [_X]}, _X, label="one"),
    Case("sum", {"X": [_X, _X * 2, _X + 1]}, _X * 4 + 1),
    Case(
        "sum",
        {"X": [rows([2, 0], numbers(2, 3), 4), rows([2], numbers(1, 3, seed=1), 4)]},
        rows([2, 0, 2], np.concatenate([numbers(2, 3), numbers(1, 3, seed=1)]), 4),
        grads=(),
        label="rows",
    ),
    Case(
        "sum",
        {"X": [numbers(4, 3), rows([2, 2], numbers(2, 3, seed=1), 4)]},
        numbers(4, 3)
        + np.array([[0.0], [0.0], [1.0], [0.0]], np.float32) * numbers(2, 3, seed=1).sum(0),
        grads=(),
        label="rows_and_dense",
    ),
    Case("cumsum", {"X": _X}, np.cumsum(_X, -1)),
    Case(
        "cumsum",
        {"X": _X},
        np.cumsum(_X, 1) - _X,
        {"axis": 1, "exclusive": True},
        label="exclusive",
    ),
    Case(
        "cumsum",
        {"X": _X},
        np.cumsum(_X[:, ::-1], 1)[:, ::-1],
        {"axis": 1, "reverse": True},
        label="reverse",
    ),
    Case(
        "norm",
        {"X": _X},
        lambda X: {
            "Out": X / np.sqrt((X**2).sum(1, keepdims=True)),
            "Norm": np.sqrt((X**2).sum(1, keepdims=True)),
        },
        {"axis": 1, "epsilon": 1e-12},
    ),
]
