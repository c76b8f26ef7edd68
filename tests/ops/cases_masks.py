"""Cases of splitting by a mask and joining again."""

import numpy as np

from .case import Case, lod, numbers

_X = numbers(4, 2)
_MASK = np.array([[True], [False], [False], [True]])
_SEQ = lod(numbers(6, 2, seed=1), [2, 3, 1])
_SIDES = np.array([[False], [True], [True]])
_ROWS = _SEQ.array
_MERGED = _X[[2, 0, 1, 3]]

CASES = [
    Case(
        "split_lod_tensor", {"X": _X, "Mask": _MASK}, {"OutTrue": _X[[0, 3]], "OutFalse": _X[1:3]}
    ),
    Case(
        "split_lod_tensor",
        {"X": _SEQ, "Mask": _SIDES},
        {"OutTrue": _ROWS[2:], "OutFalse": _ROWS[:2]},
        label="sequences",
        out_lod={"OutTrue": [[3, 1]], "OutFalse": [[2]]},
    ),
    *(
        Case(
            type,
            {"X": _MASK, "Mask": _MASK, "InTrue": _X[2:], "InFalse": _X[:2]},
            _MERGED,
            grads=("InTrue", "InFalse") if type == "merge_lod_tensor" else (),
        )
        for type in ("merge_lod_tensor", "merge_lod_tensor_infer")
    ),
    Case("is_empty", {"X": _X}, np.array([False])),
    Case("is_empty", {"X": np.zeros((0, 2), "float32")}, np.array([True]), label="nothing"),
]
