"""Cases of diagonals, grids, norms, gates and features."""

import numpy as np

from .case import Array, Case, lod, numbers

_X, _Y = numbers(3, 4, low=-2, high=2), numbers(3, 4, low=-1.9, high=2.1, seed=1)
_T = numbers(2, 3, 4)
_MAPS = numbers(2, 4, 2, 3, seed=2)


def _diagonals(rows: Array) -> Array:
    out = np.zeros((*rows.shape[:-1], 5, 5), rows.dtype)
    for i in range(4):
        out[..., i, i + 1] = rows[..., i]
    return out


def _waves(length: int) -> Array:
    place = np.arange(length)[:, None] / np.array([1.0, 10000.0])
    return np.concatenate([np.sin(place), np.cos(place)], axis=1)


def _leaky(X: Array, slope: Array) -> Array:
    return np.where(X > 0, X, X * slope)


CASES = [
    Case("diag_embed", {"Input": _X}, lambda Input: _diagonals(Input), {"offset": 1}, grads=()),
    Case(
        "diag_embed",
        {"Input": _X},
        lambda Input: np.moveaxis(_diagonals(Input), (1, 2), (2, 0)),
        {"offset": 1, "dim1": 2, "dim2": 0},
        grads=(),
        label="dims",
        batch=False,
    ),
    Case(
        "trace",
        {"Input": _T},
        lambda Input: np.trace(Input, 1, 1, 2),
        {"offset": 1, "dim1": 1, "dim2": 2},
    ),
    Case(
        "trace",
        {"Input": _T},
        lambda Input: np.trace(Input, -1, 0, 1),
        {"offset": -1, "dim1": 0, "dim2": 1},
        label="front",
    ),
    Case("tril_triu", {"X": _T}, lambda X: np.tril(X, 1), {"diagonal": 1, "lower": True}),
    Case("tril_triu", {"X": _T}, lambda X: np.triu(X), {"lower": False}, label="upper"),
    Case(
        "meshgrid",
        {"X": [numbers(2), numbers(3, seed=1)]},
        lambda X: {"Out": list(np.meshgrid(*X, indexing="ij"))},
    ),
    Case(
        "dist",
        {"X": _X, "Y": _Y},
        lambda X, Y: np.array([np.linalg.norm((X - Y).ravel(), 3)]),
        {"p": 3.0},
    ),
    Case(
        "dist",
        {"X": _X, "Y": _Y[0]},
        lambda X, Y: np.array([np.linalg.norm((X - Y).ravel())]),
        {"p": 2.0},
        label="spread",
        batch=False,
    ),
    Case(
        "dist",
        {"X": _X, "Y": _Y},
        lambda X, Y: np.array([np.abs(X - Y).max()]),
        {"p": float("inf")},
        label="largest",
    ),
    Case("dist", {"X": _X, "Y": _Y}, np.float32([12]), {"p": 0.0}, label="count"),
    Case("p_norm", {"X": _T}, lambda X: np.linalg.norm(X, 3, axis=1), {"porder": 3.0, "axis": 1}),
    Case(
        "p_norm",
        {"X": _T},
        lambda X: np.linalg.norm(X, axis=-1, keepdims=True),
        {"keepdim": True},
        label="keep",
    ),
    Case("frobenius_norm", {"X": _T}, lambda X: np.sqrt((X**2).sum((1, 2))), {"dim": [1, 2]}),
    Case(
        "prelu",
        {"X": _X, "Alpha": np.float32([0.3])},
        lambda X, Alpha: _leaky(X, Alpha[0]),
        {"mode": "all"},
        batch=False,
    ),
    Case(
        "prelu",
        {"X": _MAPS, "Alpha": numbers(1, 4, 1, 1, low=0.1)},
        lambda X, Alpha: _leaky(X, Alpha),
        {"mode": "channel"},
        label="channel",
        batch=False,
    ),
    Case(
        "prelu",
        {"X": _MAPS, "Alpha": numbers(1, 4, 2, 3, low=0.1)},
        lambda X, Alpha: _leaky(X, Alpha),
        {"mode": "element"},
        label="element",
        batch=False,
    ),
    Case(
        "maxout", {"X": _MAPS}, lambda X: X.reshape(2, 2, 2, 2, 3).max(2), {"groups": 2, "axis": 1}
    ),
    Case(
        "add_position_encoding",
        {"X": _T},
        lambda X: X * 0.5 + 2 * _waves(3),
        {"alpha": 0.5, "beta": 2.0},
    ),
    Case(
        "add_position_encoding",
        {"X": lod(numbers(5, 4), [2, 3])},
        lambda X: X + np.concatenate([_waves(2), _waves(3)]),
        label="sequences",
    ),
    Case(
        "fsp",
        {"X": _MAPS, "Y": numbers(2, 3, 2, 3, seed=3)},
        lambda X, Y: np.einsum("bchw,bdhw->bcd", X, Y) / 6,
    ),
    Case(
        "cvm",
        {"X": numbers(3, 4, low=0.0, high=3.0), "CVM": numbers(3, 2)},
        lambda X: np.concatenate(
            [np.log(X[:, :1] + 1), np.log((X[:, 1:2] + 1) / (X[:, :1] + 1)), X[:, 2:]], 1
        ),
        grads=(),
    ),
    Case(
        "cvm",
        {"X": _X, "CVM": numbers(3, 2)},
        lambda X: X[:, 2:],
        {"use_cvm": False},
        grads=(),
        label="dropped",
    ),
    Case(
        "print",
        {"In": _X},
        _X,
        {"first_n": 0, "is_forward": True, "message": "", "print_phase": "BOTH", "summarize": 3},
    ),
    Case(
        "spectral_norm",
        {"Weight": _X, "U": numbers(3, seed=1), "V": numbers(4, seed=2)},
        lambda Weight, U, V: Weight / (U @ Weight @ V),
        {"dim": 0, "power_iters": 0, "eps": 1e-12},
        grads=("Weight",),
        label="given_vectors",
        batch=False,
    ),
]
