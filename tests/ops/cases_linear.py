"""Cases of products of matrices and vectors."""

import numpy as np

from .case import Array, Case, numbers


def _cosine(X: Array, Y: Array) -> Array:
    size = np.sqrt((X * X).sum(1) * (Y * Y).sum(1))
    return ((X * Y).sum(1) / size)[:, None]


_A, _B = numbers(3, 4), numbers(4, 5, seed=1)
_T, _U = numbers(2, 3, 4), numbers(2, 4, 2, seed=1)

CASES = [
    Case("mul", {"X": _A, "Y": _B}, _A @ _B),
    Case("mul", {"X": _T, "Y": _B}, _T @ _B, {"x_num_col_dims": 2}, label="3d"),
    Case(
        "mul",
        {"X": _T, "Y": numbers(3, 4, 2, seed=2)},
        lambda X, Y: X.reshape(2, 12) @ Y.reshape(12, 2),
        {"y_num_col_dims": 2},
        label="both",
    ),
    Case("matmul", {"X": _A, "Y": _B}, _A @ _B),
    Case("matmul", {"X": _A, "Y": _B}, _A @ _B * 0.5, {"alpha": 0.5}, label="alpha"),
    Case(
        "matmul",
        {"X": _A.T.copy(), "Y": _B},
        _A @ _B,
        {"transpose_X": True},
        label="tx",
        batch=False,
    ),
    Case("matmul", {"X": _A, "Y": _B.T.copy()}, _A @ _B, {"transpose_Y": True}, label="ty"),
    Case("matmul", {"X": _T, "Y": _U}, _T @ _U, label="batch"),
    Case(
        "matmul",
        {"X": _T.swapaxes(1, 2).copy(), "Y": _U.swapaxes(1, 2).copy()},
        _T @ _U * 2,
        {"transpose_X": True, "transpose_Y": True, "alpha": 2.0},
        label="batch_both",
    ),
    Case("matmul", {"X": _T, "Y": _B}, _T @ _B, label="shared", batch=False),
    Case(
        "matmul",
        {"X": numbers(4), "Y": numbers(4, seed=1)},
        lambda X, Y: np.array([X @ Y]),
        label="vectors",
    ),
    Case(
        "matmul",
        {"X": _T, "Y": numbers(4, seed=2)},
        lambda X, Y: X @ Y,
        label="matrix_vector",
        batch=False,
    ),
    Case(
        "matmul",
        {"X": numbers(4, seed=2), "Y": _U},
        lambda X, Y: X @ Y,
        label="vector_matrix",
        batch=False,
    ),
    Case("bmm", {"X": _T, "Y": _U}, _T @ _U),
    Case("dot", {"X": numbers(4), "Y": numbers(4, seed=1)}, lambda X, Y: np.array([X @ Y])),
    Case(
        "dot",
        {"X": _A, "Y": _A[::-1].copy()},
        lambda X, Y: (X * Y).sum(1, keepdims=True),
        label="rows",
    ),
    Case(
        "addmm",
        {"Input": numbers(3, 5, seed=3), "X": _A, "Y": _B},
        lambda Input, X, Y: 0.5 * Input + 2 * X @ Y,
        {"Alpha": 2.0, "Beta": 0.5},
    ),
    Case(
        "bilinear_tensor_product",
        {
            "X": _A,
            "Y": numbers(3, 2, seed=4),
            "Weight": numbers(5, 4, 2, seed=5),
            "Bias": numbers(1, 5),
        },
        lambda X, Y, Weight, Bias: np.einsum("bi,kij,bj->bk", X, Weight, Y) + Bias,
    ),
    Case("cos_sim", {"X": _A, "Y": _A[::-1].copy()}, lambda X, Y: {"Out": _cosine(X, Y)}),
    Case(
        "cos_sim",
        {"X": _A, "Y": _A[:1].copy()},
        lambda X, Y: {"Out": _cosine(X, Y)},
        label="one",
        batch=False,
    ),
    Case("kron", {"X": _A, "Y": numbers(2, 3, seed=6)}, lambda X, Y: np.kron(X, Y), batch=False),
    Case(
        "kron",
        {"X": _A, "Y": numbers(3, seed=6)},
        lambda X, Y: np.kron(X, Y),
        label="vector",
        batch=False,
    ),
    Case("cross", {"X": numbers(4, 3), "Y": numbers(4, 3, seed=1)}, lambda X, Y: np.cross(X, Y)),
]
