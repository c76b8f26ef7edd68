"""Cases of cuts and borders."""

import numpy as np

from .case import Case, numbers

_X = numbers(3, 4, 5)
_IMAGE = numbers(1, 2, 3, 4)
_INT = np.int32

CASES = [
    Case(
        "slice", {"Input": _X}, _X[1:3, :, :-1], {"axes": [0, 2], "starts": [1, 0], "ends": [3, -1]}
    ),
    Case(
        "slice",
        {"Input": _X},
        _X[:, -2],
        {"axes": [1], "starts": [-2], "ends": [-1], "decrease_axis": [1]},
        label="drop",
    ),
    Case(
        "slice",
        {"Input": _X},
        _X[1:],
        {"axes": [0], "starts": [1], "ends": [10_000_000]},
        label="end",
    ),
    Case(
        "slice",
        {"Input": _X, "StartsTensor": _INT([1]), "EndsTensor": _INT([3])},
        _X[:, 1:3],
        {"axes": [1], "infer_flags": [-1]},
        grads=("Input",),
        label="tensor",
    ),
    Case(
        "slice",
        {"Input": _X, "StartsTensorList": [_INT([1]), _INT([0])]},
        _X[:, 1:3, :4],
        {"axes": [1, 2], "starts": [-1, -1], "ends": [3, 4], "infer_flags": [-1, -1]},
        grads=("Input",),
        label="list",
    ),
    Case(
        "strided_slice",
        {"Input": _X},
        _X[:, ::2],
        {"axes": [1], "starts": [0], "ends": [4], "strides": [2]},
    ),
    Case(
        "strided_slice",
        {"Input": _X},
        _X[:, 3:0:-2],
        {"axes": [1], "starts": [3], "ends": [0], "strides": [-2]},
        label="back",
    ),
    Case(
        "strided_slice",
        {"Input": _X},
        _X[:, 2:0:-2],
        {"axes": [1], "starts": [2], "ends": [0], "strides": [-2]},
        label="back_with_a_remainder",
    ),
    Case(
        "crop",
        {"X": _X},
        _X[1:3, 1:4, 2:4],
        {"offsets": [1, 1, 2], "shape": [2, 3, 2]},
        batch=False,
    ),
    Case("crop", {"X": _X, "Y": numbers(2, 3, 2)}, _X[:2, :3, :2], grads=("X",), label="like"),
    Case(
        "crop",
        {"X": _X, "Offsets": _INT([1, 0, 0])},
        _X[1:, :2, :3],
        {"shape": [2, 2, 3]},
        grads=("X",),
        label="tensor",
        batch=False,
    ),
    Case(
        "crop_tensor",
        {"X": _X},
        _X[1:3, 1:, 2:4],
        {"offsets": [1, 1, 2], "shape": [2, -1, 2]},
        batch=False,
    ),
    Case(
        "crop_tensor",
        {"X": _X, "Shape": _INT([2, 2, 2]), "OffsetsTensor": [_INT([1]), _INT([0]), _INT([1])]},
        _X[1:3, :2, 1:3],
        {"offsets": [-1, -1, -1]},
        grads=("X",),
        label="tensors",
        batch=False,
    ),
    Case(
        "pad",
        {"X": _X},
        np.pad(_X, ((0, 1), (2, 0), (0, 0)), constant_values=0.5),
        {"paddings": [0, 1, 2, 0, 0, 0], "pad_value": 0.5},
    ),
    Case(
        "pad_constant_like",
        {"X": _X, "Y": numbers(2, 3, 5)},
        lambda Y: np.pad(Y, ((0, 1), (0, 1), (0, 0)), constant_values=2.0),
        {"pad_value": 2.0},
    ),
    Case(
        "pad2d",
        {"X": _IMAGE},
        np.pad(_IMAGE, ((0, 0), (0, 0), (1, 0), (1, 2)), constant_values=0.5),
        {"paddings": [1, 0, 1, 2], "mode": "constant", "pad_value": 0.5, "data_format": "NCHW"},
    ),
    Case(
        "pad2d",
        {"X": _IMAGE},
        np.pad(_IMAGE, ((0, 0), (0, 0), (1, 2), (2, 1)), mode="reflect"),
        {"paddings": [1, 2, 2, 1], "mode": "reflect", "pad_value": 0.0, "data_format": "NCHW"},
        label="reflect",
    ),
    Case(
        "pad2d",
        {"X": _IMAGE},
        np.pad(_IMAGE, ((0, 0), (1, 2), (2, 1), (0, 0)), mode="edge"),
        {"paddings": [1, 2, 2, 1], "mode": "edge", "pad_value": 0.0, "data_format": "NHWC"},
        label="edge",
    ),
    Case(
        "pad2d",
        {"X": _IMAGE, "Paddings": _INT([0, 1, 0, 1])},
        np.pad(_IMAGE, ((0, 0), (0, 0), (0, 1), (0, 1))),
        {"paddings": [0, 1, 0, 1], "mode": "constant", "pad_value": 0.0, "data_format": "NCHW"},
        grads=("X",),
        label="tensor",
    ),
]
