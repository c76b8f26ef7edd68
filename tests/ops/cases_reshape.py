"""Cases of layout: reshape and its kin, joining, taking apart, repeating, turning round."""

import numpy as np

from .case import Case, numbers

_X = numbers(2, 3, 4)
_ONES = numbers(2, 1, 3, 1)
_PAIR = [numbers(2, 3), numbers(2, 2, seed=1)]
_TWINS = [numbers(2, 3), numbers(2, 3, seed=1)]
_IDS = np.array([[1], [0]], np.int32)

CASES = []
for _two in ("", "2"):
    CASES += [
        Case("reshape" + _two, {"X": _X}, {"Out": _X.reshape(2, 6, 2)}, {"shape": [0, -1, 2]}),
        Case(
            "reshape" + _two,
            {"X": _X},
            {"Out": _X.reshape(4, 6)},
            {"shape": [4, 6]},
            label="plain",
            batch=False,
        ),
        Case(
            "reshape" + _two,
            {"X": _X, "Shape": np.int32([6, 4])},
            {"Out": _X.reshape(6, 4)},
            grads=("X",),
            label="tensor",
            batch=False,
        ),
        Case(
            "reshape" + _two,
            {"X": _X, "ShapeTensor": [np.int32([8]), np.int32([3])]},
            {"Out": _X.reshape(8, 3)},
            {"shape": [-1, -1]},
            grads=("X",),
            label="list",
        ),
        Case("squeeze" + _two, {"X": _ONES}, {"Out": _ONES[:, 0]}, {"axes": [1]}),
        Case("squeeze" + _two, {"X": _ONES}, {"Out": _ONES[:, 0, :, 0]}, label="all"),
        Case("unsqueeze" + _two, {"X": _X}, {"Out": _X[None, ..., None]}, {"axes": [0, -1]}),
        Case("flatten" + _two, {"X": _X}, {"Out": _X.reshape(2, 12)}),
        Case("flatten" + _two, {"X": _X}, {"Out": _X.reshape(6, 4)}, {"axis": 2}, label="two"),
        Case("transpose" + _two, {"X": _X}, {"Out": _X.transpose(2, 0, 1)}, {"axis": [2, 0, 1]}),
    ]

CASES += [
    Case("expand", {"X": _X}, np.tile(_X, (2, 1, 3)), {"expand_times": [2, 1, 3]}),
    Case(
        "expand",
        {"X": _X, "ExpandTimes": np.int32([1, 2, 1])},
        np.tile(_X, (1, 2, 1)),
        label="tensor",
        grads=("X",),
        batch=False,
    ),
    Case(
        "expand_as",
        {"X": _X, "target_tensor": numbers(4, 3, 8)},
        np.tile(_X, (2, 1, 2)),
        grads=("X",),
    ),
    Case("reverse", {"X": _X}, _X[::-1, :, ::-1], {"axis": [0, 2]}),
    Case("flip", {"X": _X}, _X[:, ::-1], {"dims": [1]}),
    Case("roll", {"X": _X}, np.roll(_X, (1, -1), (0, 2)), {"shifts": [1, -1], "dims": [0, 2]}),
    Case("concat", {"X": _PAIR}, np.concatenate(_PAIR, 1), {"axis": 1}),
    Case(
        "concat",
        {"X": _PAIR, "AxisTensor": np.int32([-1])},
        np.concatenate(_PAIR, 1),
        grads=("X",),
        label="tensor",
        batch=False,
    ),
    Case("split", {"X": _X}, {"Out": np.split(_X, 2, 2)}, {"axis": 2, "num": 2}),
    Case(
        "split",
        {"X": _X},
        {"Out": np.split(_X, [1, 3], 2)},
        {"axis": -1, "sections": [1, 2, -1]},
        label="sections",
    ),
    Case("stack", {"X": _TWINS}, np.stack(_TWINS, 1), {"axis": 1}),
    Case("stack", {"X": _TWINS}, np.stack(_TWINS, -1), {"axis": -1}, label="last"),
    Case("unstack", {"X": _X}, {"Y": list(_X.transpose(1, 0, 2))}, {"axis": 1, "num": 3}),
    Case("unbind", {"X": _X}, {"Out": list(_X.transpose(1, 0, 2))}, {"axis": 1}),
    Case(
        "multiplex",
        {"Ids": _IDS, "X": _TWINS},
        np.stack([_TWINS[1][0], _TWINS[0][1]]),
        grads=("X",),
    ),
]
