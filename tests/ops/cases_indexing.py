"""Cases of picking, placing and ordering by index."""

import numpy as np

from .case import Array, Case, numbers, whole

_X = numbers(4, 3)
_IDS = np.array([2, 0, 2])
_PAIRS = np.array([[2, 1], [0, 0], [2, 1]])
_UPDATES = numbers(3, 3, seed=1)
_FLAT = np.array([7, 3, 7, 5, 3])


def _placed(x: Array, ids: Array, updates: Array) -> Array:
    out = x.copy()
    out[ids] = updates
    return out


def _added(x: Array, index: object, updates: Array) -> Array:
    out = x.copy()
    np.add.at(out, index, updates)
    return out


CASES = [
    Case("gather", {"X": _X, "Index": _IDS}, _X[_IDS], {"overwrite": False}),
    Case("gather", {"X": _X, "Index": _IDS}, _X[_IDS], {"overwrite": True}, label="twice"),
    Case("gather", {"X": _X, "Index": np.array([[2], [0]])}, _X[[2, 0]], label="column"),
    Case(
        "scatter",
        {"X": _X, "Ids": np.array([2, 0, 1]), "Updates": _UPDATES},
        lambda X, Ids, Updates: _placed(X, Ids, Updates),
    ),
    Case(
        "scatter",
        {"X": _X, "Ids": _IDS, "Updates": _UPDATES},
        lambda X, Ids, Updates: _added(_placed(X, Ids, 0), Ids, Updates),
        {"overwrite": False},
        label="add",
    ),
    Case(  # the last update of a row counts
        "scatter",
        {"X": _X, "Ids": np.array([1, 0, 1]), "Updates": _UPDATES},
        lambda X, Ids, Updates: _placed(X, Ids, Updates),
        label="twice",
    ),
    Case("index_select", {"X": _X, "Index": _IDS}, _X[:, _IDS], {"dim": 1}),
    Case(
        "index_sample",
        {"X": _X, "Index": whole(4, 2, below=3)},
        lambda X, Index: np.take_along_axis(X, Index, 1),
    ),
    Case("gather_nd", {"X": _X, "Index": _PAIRS}, _X[_PAIRS[:, 0], _PAIRS[:, 1]]),
    Case("gather_nd", {"X": _X, "Index": _PAIRS[:, :1]}, _X[_PAIRS[:, 0]], label="rows"),
    Case(
        "scatter_nd_add",
        {"X": _X, "Index": _PAIRS, "Updates": numbers(3, seed=1)},
        lambda X, Index, Updates: _added(X, (Index[:, 0], Index[:, 1]), Updates),
    ),
    Case("one_hot", {"X": np.array([[1], [0]])}, np.float32([[0, 1, 0], [1, 0, 0]]), {"depth": 3}),
    Case(
        "one_hot",
        {"X": np.array([[1], [5]])},
        np.float32([[0, 1, 0], [0, 0, 0]]),
        {"depth": 3, "allow_out_of_range": True},
        label="beyond",
    ),
    Case("one_hot_v2", {"X": np.array([1, 0])}, np.float32([[0, 1, 0], [1, 0, 0]]), {"depth": 3}),
    Case(
        "one_hot_v2",
        {"X": np.array([1, 0]), "depth_tensor": np.int32([2])},
        np.float32([[0, 1], [1, 0]]),
        label="tensor",
        batch=False,
    ),
    Case("arg_max", {"X": _X}, _X.argmax(0), {"axis": 0, "dtype": -1}, grads=()),
    Case(
        "arg_min",
        {"X": _X},
        _X.argmin(1)[:, None],
        {"axis": -1, "dtype": -1, "keepdims": True},
        grads=(),
    ),
    Case("argsort", {"X": _X}, {"Out": np.sort(_X, 0), "Indices": np.argsort(_X, 0)}, {"axis": 0}),
    Case(
        "argsort",
        {"X": _X},
        {"Out": -np.sort(-_X), "Indices": np.argsort(-_X)},
        {"descending": True},
        label="down",
    ),
    Case(
        "top_k",
        {"X": _X},
        {"Out": -np.sort(-_X)[:, :2], "Indices": np.argsort(-_X)[:, :2]},
        {"k": 2},
    ),
    Case(
        "top_k",
        {"X": _X},
        {"Out": _X.max(1, keepdims=True), "Indices": _X.argmax(1)[:, None]},
        label="one",
    ),
    Case(
        "where",
        {"Condition": _X > 0, "X": _X, "Y": numbers(4, 3, seed=2)},
        lambda X, Y: np.where(X > 0, X, Y),
    ),
    Case("where_index", {"Condition": _X > 0}, np.argwhere(_X > 0)),
    Case(
        "unique",
        {"X": _FLAT},
        {"Out": np.array([7, 3, 5]), "Index": np.int32([0, 1, 0, 2, 1])},
        {"dtype": 2},
    ),
    Case(
        "unique_with_counts",
        {"X": _FLAT},
        {
            "Out": np.array([7, 3, 5]),
            "Index": np.int32([0, 1, 0, 2, 1]),
            "Count": np.int32([2, 2, 1]),
        },
        {"dtype": 2},
    ),
    Case(
        "shard_index",
        {"X": np.array([[1], [6], [12], [19]])},
        np.array([[-1], [-1], [2], [9]]),
        {"index_num": 20, "nshards": 2, "shard_id": 1, "ignore_value": -1},
    ),
]
