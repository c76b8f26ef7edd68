"""Cases of the operators that stand around communication in split programs."""

import numpy as np

from .case import Case, numbers, rows

_WHOLE = numbers(7, 3)
_ROWS = rows([5, 1, 4, 1, 2], numbers(5, 3, seed=1), 7)
_BACKUPS = [numbers(2, 3, seed=i) for i in range(3)]

CASES = [
    Case(
        "split_byref",
        {"X": _WHOLE},
        {"Out": [_WHOLE[:3], _WHOLE[3:4], _WHOLE[4:]]},
        {"sections": [3, 1, 3]},
        batch=False,
    ),
    Case(
        "split_selected_rows",
        {"X": _ROWS},
        {
            "Out": [
                rows([1, 1, 2], _ROWS.value[[1, 3, 4]], 3),
                rows([1], _ROWS.value[[2]], 2),
                rows([0], _ROWS.value[[0]], 2),
            ]
        },
        {"height_sections": [3, 2, 2]},
    ),
    Case("ref_by_trainer_id", {"X": _BACKUPS, "TrainerId": np.array([2])}, _BACKUPS[2]),
]
