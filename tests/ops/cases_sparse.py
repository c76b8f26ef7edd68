"""Cases of tables of rows and of operators on selected rows."""

import numpy as np

from .case import Case, numbers, rows, whole

_TABLE = numbers(7, 3)
_IDS = whole(5, 1, below=7)
_FLAT = np.array([[4, 1], [4, 6]])
_X = rows([4, 1, 4], numbers(3, 3, seed=1), 7)
_MERGED = rows([1, 4], np.stack([_X.value[1], _X.value[0] + _X.value[2]]), 7)
_TWO = np.array([2.0], dtype=np.float32)
_SIZE = np.linalg.norm(_MERGED.value)

_FOUR = numbers(4, 2, seed=3)

CASES = [
    *(
        Case(
            f"lookup_table{version}",
            {"W": rows([5, 1, 7, 2], _FOUR, 10), "Ids": np.array([[5], [2], [7], [5]])[..., last]},
            _FOUR[[0, 3, 2, 0]] * np.float32([[1], [padding != 2], [1], [1]]),
            {"padding_idx": padding},
            label=f"rows_{padding}",
            batch=False,
        )
        for version, last in (("", slice(None)), ("_v2", 0))
        for padding in (-1, 2)
    ),
    *(
        Case(
            f"lookup_table{version}_grad",
            {
                "W": rows([5, 1, 7, 2], _FOUR, 10),
                "Ids": np.array([[5], [2], [5]])[..., last],
                "Out@GRAD": _FOUR[:3],
            },
            {"W@GRAD": rows([5, 5], _FOUR[[0, 2]], 10)},
            {"padding_idx": 2},
            label="rows",
            batch=False,
        )
        for version, last in (("", slice(None)), ("_v2", 0))
    ),
    Case("lookup_table", {"W": _TABLE, "Ids": _IDS}, _TABLE[_IDS[:, 0]]),
    Case(
        "lookup_table",
        {"W": _TABLE, "Ids": _IDS},
        _TABLE[_IDS[:, 0]],
        {"is_sparse": True},
        label="sparse",
    ),
    Case(
        "lookup_table",
        {"W": _TABLE, "Ids": np.array([[4], [1], [4]])},
        np.stack([0 * _TABLE[4], _TABLE[1], 0 * _TABLE[4]]),
        {"padding_idx": 4},
        label="padding",
    ),
    Case("lookup_table_v2", {"W": _TABLE, "Ids": _FLAT}, _TABLE[_FLAT]),
    Case(
        "lookup_table_v2",
        {"W": _TABLE, "Ids": _FLAT},
        _TABLE[_FLAT] * (_FLAT != 4)[..., None].astype("float32"),
        {"is_sparse": True, "padding_idx": 4},
        label="sparse_padding",
    ),
    Case("merge_selected_rows", {"X": _X}, _MERGED),
    Case("get_tensor_from_selected_rows", {"X": rows([2, 0, 1], _TABLE[:3], 3)}, _TABLE[:3]),
    Case("scale", {"X": _X}, rows([4, 1, 4], _X.value * 3, 7), {"scale": 3.0}, label="rows"),
    Case(
        "clip",
        {"X": _X},
        rows([1, 4], np.clip(_MERGED.value, -0.2, 0.3), 7),
        {"min": -0.2, "max": 0.3},
        label="rows",
    ),
    Case(
        "clip_by_norm",
        {"X": _X},
        rows([1, 4], _MERGED.value * 0.1 / _SIZE, 7),
        {"max_norm": 0.1},
        label="rows",
    ),
    Case(
        "elementwise_mul",
        {"X": _X, "Y": _TWO},
        rows([4, 1, 4], _X.value * 2, 7),
        label="rows",
        grads=(),
    ),
    Case(
        "elementwise_div",
        {"X": _X, "Y": _TWO},
        rows([4, 1, 4], _X.value / 2, 7),
        label="rows",
        grads=(),
    ),
    Case("assign", {"X": _X}, _X, label="rows", grads=()),
    Case("fill_zeros_like", {"X": _X}, rows([], np.zeros((0, 3), "float32"), 7), label="rows"),
]
