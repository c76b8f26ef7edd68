"""Cases of binary operators: arithmetic with `axis`, comparisons, logic, and questions about
tensors.
"""

import numpy as np

from .case import Case, numbers, whole

_X, _Y = numbers(2, 3, 4, low=0.5, high=3.0), numbers(2, 3, 4, low=0.4, high=2.5, seed=1)
_ROW = numbers(4, low=0.4, high=2.5, seed=2)
_MIDDLE = numbers(3, low=0.4, high=2.5, seed=3)
_FRONT = numbers(2, 3, low=0.41, high=2.6, seed=4)
_ONES = numbers(2, 1, 4, low=0.4, high=2.5, seed=5)

_FLOAT = {
    "elementwise_add": np.add,
    "elementwise_sub": np.subtract,
    "elementwise_mul": np.multiply,
    "elementwise_div": np.divide,
    "elementwise_max": np.maximum,
    "elementwise_min": np.minimum,
    "elementwise_pow": np.power,
}
_COMPARE = {
    "less_than": np.less,
    "less_equal": np.less_equal,
    "greater_than": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
_LOGIC = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}

CASES = [Case("minus", {"X": _X, "Y": _Y}, _X - _Y, grads=("X", "Y"))]
for _name, _f in _FLOAT.items():
    CASES += [
        Case(_name, {"X": _X, "Y": _Y}, _f(_X, _Y)),
        Case(_name, {"X": _X, "Y": _ROW}, _f(_X, _ROW), label="last", batch=False),
        Case(
            _name,
            {"X": _X, "Y": _MIDDLE},
            _f(_X, _MIDDLE[:, None]),
            {"axis": 1},
            label="middle",
            batch=False,
        ),
        Case(_name, {"X": _X, "Y": _FRONT}, _f(_X, _FRONT[..., None]), {"axis": 0}, label="front"),
        Case(_name, {"X": _X, "Y": _ONES}, _f(_X, _ONES), label="ones"),
        Case(
            _name,
            {"X": _X, "Y": _MIDDLE.reshape(3, 1)},
            _f(_X, _MIDDLE[:, None]),
            {"axis": 1},
            label="trailing_one",
            batch=False,
        ),
        Case(_name, {"X": _ROW, "Y": _X}, _f(_ROW, _X), label="small_left", batch=False),
    ]

_A, _B = np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])
CASES += [
    Case("elementwise_div", {"X": _A, "Y": _B}, np.array([3, -3, -3, 3]), label="whole"),
    Case("elementwise_floordiv", {"X": _A, "Y": _B}, np.array([3, -3, -3, 3])),
    Case("elementwise_mod", {"X": _A, "Y": _B}, np.array([1, -1, 1, -1]), label="whole"),
    Case(
        "elementwise_mod",
        {"X": np.float32(_A), "Y": np.float32(_B)},
        np.float32([1, 1, -1, -1]),
        grads=(),
    ),
    Case("elementwise_pow", {"X": _A, "Y": _B}, np.array([49, 49, 0, 0]), label="whole"),
    Case("elementwise_add", {"X": _A, "Y": _B}, _A + _B, label="whole"),
]

_M, _N = whole(3, 4, below=3), whole(3, 4, below=3, seed=1)
CASES += [Case(n, {"X": _M, "Y": _N}, f(_M, _N)) for n, f in _COMPARE.items()]
CASES += [
    Case("less_than", {"X": _M, "Y": _N[0]}, _N[0] > _M, label="row", batch=False),
    Case("equal", {"X": _M, "Y": np.array([1])}, _M == 1, label="one", batch=False),
]
CASES += [Case(n, {"X": _M > 1, "Y": _N > 0}, f(_M > 1, _N > 0)) for n, f in _LOGIC.items()]

_INF = np.float32([1, np.inf])
_NAN = np.float32([1, np.nan])
CASES += [
    Case("logical_not", {"X": _M > 1}, _M <= 1),
    Case("equal_reduce", {"X": _M, "Y": _M}, np.array([True])),
    Case("equal_reduce", {"X": _M, "Y": _N}, np.array([False]), label="differ"),
    Case("equal_reduce", {"X": _M[[1, 1]], "Y": _M[1]}, np.array([True]), label="row", batch=False),
    Case(
        "equal_reduce",
        {"X": _M[:, [0, 0]], "Y": _M[:, 0]},
        np.array([True]),
        {"axis": 0},
        label="column",
        batch=False,
    ),
    Case("is_empty", {"X": _M}, np.array([False])),
    Case("is_empty", {"X": np.zeros((0, 3), np.float32)}, np.array([True]), label="empty"),
    Case("isfinite", {"X": _X}, np.float32([1]), grads=()),
    Case("isfinite", {"X": _INF}, np.float32([0]), grads=(), label="not"),
    Case("isinf", {"X": _INF}, np.float32([1]), grads=()),
    Case("isinf", {"X": _NAN}, np.float32([0]), grads=(), label="not"),
    Case("isnan", {"X": _NAN}, np.float32([1]), grads=()),
    Case("isnan", {"X": _INF}, np.float32([0]), grads=(), label="not"),
    Case("allclose", {"Input": _X, "Other": _X + 1e-9}, np.array([True])),
    Case("allclose", {"Input": _X, "Other": _Y}, np.array([False]), label="differ"),
    Case("shape", {"Input": _X}, np.int32([2, 3, 4])),
    Case("size", {"Input": _X}, np.array([24])),
]
