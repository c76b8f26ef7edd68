"""Cases of constants, ranges, copies, and of measures of quality."""

import numpy as np

from .case import Array, Case, numbers

_X = numbers(2, 3)
_SCORE = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]], "float32")
_TRUTH = np.array([[0], [1], [0], [1]])


def _histogram(wanted: int) -> Array:
    return np.bincount((_SCORE[:, 1] * 9).astype(int)[_TRUTH[:, 0] == wanted], minlength=10)


CASES = [
    Case("fill_constant", {}, np.full((2, 3), 1.5, np.float32), {"shape": [2, 3], "value": 1.5}),
    Case(
        "fill_constant",
        {},
        np.array([2**40 + 1]),
        {"shape": [1], "dtype": 3, "value": 1.1e12, "str_value": str(2**40 + 1)},
        label="long",
    ),
    Case(
        "fill_constant",
        {"ShapeTensor": np.int32([2, 2]), "ValueTensor": np.float32([3.0])},
        np.full((2, 2), 3, np.float32),
        grads=(),
        label="tensors",
        batch=False,
    ),
    Case(
        "fill_constant",
        {"ShapeTensorList": [np.int32([2]), np.int32([1])]},
        np.zeros((2, 1), np.float32),
        {"shape": [-1, 1]},
        label="list",
    ),
    Case(
        "fill_constant_batch_size_like",
        {"Input": numbers(3, 2)},
        np.full((4, 3), 2),
        {"shape": [4, -1], "dtype": 3, "value": 2.0, "str_value": "2", "output_dim_idx": 1},
        grads=(),
    ),
    Case(
        "fill_any_like",
        {"X": _X},
        np.full((2, 3), 2, np.int32),
        {"value": 2.0, "dtype": 2},
        grads=(),
    ),
    Case("fill_zeros_like", {"X": _X}, np.zeros_like(_X), grads=()),
    Case("fill_zeros_like2", {"X": _X}, np.zeros_like(_X), grads=()),
    Case(
        "assign_value",
        {},
        np.float32([[1.5], [2.0]]),
        {"shape": [2, 1], "dtype": 5, "fp32_values": [1.5, 2.0]},
    ),
    Case(
        "assign_value",
        {},
        np.array([True, False]),
        {"shape": [2], "dtype": 0, "bool_values": [1, 0]},
        label="bool",
    ),
    Case(
        "fill", {}, np.float32([[1.5], [2.0]]), {"shape": [2, 1], "dtype": 5, "value": [1.5, 2.0]}
    ),
    Case(
        "range",
        {"Start": np.array([1]), "End": np.array([8]), "Step": np.array([3])},
        np.array([1, 4, 7]),
        batch=False,
    ),
    Case(
        "linspace",
        {"Start": np.float32([0]), "Stop": np.float32([1]), "Num": np.int32([5])},
        np.linspace(0, 1, 5, dtype=np.float32),
        grads=(),
        batch=False,
    ),
    Case("eye", {}, np.eye(2, 3, dtype=np.float32), {"num_rows": 2, "num_columns": 3}),
    Case("diag", {"Diagonal": numbers(3)}, lambda Diagonal: np.diag(Diagonal), grads=()),
    Case("assign", {"X": _X}, _X),
    Case(
        "accuracy",
        {
            "Out": numbers(3, 2),
            "Indices": np.array([[1, 0], [2, 1], [0, 2]]),
            "Label": np.array([[0], [0], [0]]),
        },
        {"Accuracy": np.float32([2 / 3]), "Correct": np.int32([2]), "Total": np.int32([3])},
        grads=(),
    ),
    Case(
        "auc",
        {
            "Predict": _SCORE,
            "Label": _TRUTH,
            "StatPos": np.zeros((1, 10), np.int64),
            "StatNeg": np.zeros((1, 10), np.int64),
        },
        {
            "AUC": np.array([0.75]),
            "StatPosOut": _histogram(1)[None],
            "StatNegOut": _histogram(0)[None],
        },
        {"num_thresholds": 9, "slide_steps": 0},
        grads=(),
        batch=False,
    ),
    Case(
        "mean_iou",
        {"Predictions": np.int32([0, 1, 1, 2]), "Labels": np.int32([0, 1, 2, 2])},
        {
            "OutMeanIou": np.float32([2 / 3]),
            "OutWrong": np.int32([0, 1, 1]),
            "OutCorrect": np.int32([1, 1, 1]),
        },
        {"num_classes": 3},
    ),
    Case(
        "dropout",
        {"X": _X},
        {"Out": _X * 0.7},
        {"dropout_prob": 0.3, "is_test": True},
        grads=(),
        label="test",
    ),
    Case("dropout", {"X": _X}, {"Out": _X * 0}, {"dropout_prob": 1.0}, label="none"),
    Case(
        "dropout",
        {"X": _X},
        {"Out": _X},
        {"dropout_prob": 0.0, "dropout_implementation": "upscale_in_train"},
        label="whole",
    ),
]
