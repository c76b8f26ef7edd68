"""Cases of sequences: pooled, rearranged, padded, convolved. References go sequence by sequence."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.arrays.values import LoDTensor

from .case import Case, lod, numbers, whole

Array = Any

_STEPS = numbers(7, 3, seed=4)
_X = lod(_STEPS, [3, 0, 4])
_FULL = lod(_STEPS, [3, 4])
_NESTED = lod(_STEPS, [2, 1], [2, 1, 4])
_ONE = lod(numbers(6, 1), [2, 4])
_IDS = lod(whole(6, 1, below=5), [2, 4])


def split(x: LoDTensor) -> list[Array]:
    """The rows of each innermost sequence."""
    return np.split(x.array, x.offsets[-1][1:-1])


def joined(x: LoDTensor, of_each: Callable[[Array], Array]) -> Array:
    """Sequences, each mapped, laid end to end."""
    return np.concatenate([of_each(part) for part in split(x)])


def _pooled(x: LoDTensor, kind: str, fill: float = 0.0) -> Array:
    row: dict[str, Callable[[Array], Array]] = {
        "SUM": lambda s: s.sum(0),
        "AVERAGE": lambda s: s.mean(0),
        "SQRT": lambda s: s.sum(0) / np.sqrt(len(s)),
        "MAX": lambda s: s.max(0),
        "FIRST": lambda s: s[0],
        "LAST": lambda s: s[-1],
    }
    width = x.array.shape[1:]
    return np.stack([row[kind](s) if len(s) else np.full(width, fill, "float32") for s in split(x)])


def _softmax(s: Array) -> Array:
    e = np.exp(s)
    return e / e.sum()


def _window(s: Array, weight: Array, start: int, length: int) -> Array:
    width = s.shape[1]
    out = np.zeros((len(s), weight.shape[1]), "float32")
    for t in range(len(s)):
        for k in range(length):
            if 0 <= t + start + k < len(s):
                out[t] += s[t + start + k] @ weight[k * width : (k + 1) * width]
    return out


def _ahead(s: Array, weight: Array) -> Array:
    out = np.zeros_like(s)
    for t in range(len(s)):
        for k in range(min(len(weight), len(s) - t)):
            out[t] += s[t + k] * weight[k]
    return out


def _padded(x: LoDTensor, fill: float, width: int) -> Array:
    out = np.full((len(split(x)), width, *x.array.shape[1:]), fill, "float32")
    for i, s in enumerate(split(x)):
        out[i, : len(s)] = s
    return out


_CONV = numbers(9, 2, seed=1)
_ROWS = numbers(3, 3, seed=2)
_A, _B = lod(numbers(5, 2), [2, 3]), lod(numbers(4, 2, seed=1), [1, 3])
_SHORT = numbers(3, 2, seed=5)
_IMAGE = numbers(2, 2, 4, 4)

CASES = [
    Case(
        "sequence_pool",
        {"X": _X},
        {"Out": _pooled(_X, kind, 2.0)},
        {"pooltype": kind, "pad_value": 2.0},
        label=kind,
    )
    for kind in ("SUM", "AVERAGE", "SQRT", "MAX", "FIRST", "LAST")
]
CASES += [
    Case(
        "sequence_pool",
        {"X": _NESTED},
        {"Out": _pooled(_NESTED, "SUM")},
        {"pooltype": "SUM"},
        label="nested",
        out_lod={"Out": [[2, 1]]},
    ),
    Case("sequence_softmax", {"X": _ONE}, joined(_ONE, _softmax), out_lod={"Out": [[2, 4]]}),
    Case(
        "sequence_conv",
        {"X": _X, "Filter": _CONV},
        joined(_X, lambda s: _window(s, _CONV, -1, 3)),
        {"contextStart": -1, "contextLength": 3, "contextStride": 1},
        out_lod={"Out": [[3, 0, 4]]},
    ),
    Case(
        "sequence_conv",
        {"X": _FULL, "Filter": _CONV},
        joined(_FULL, lambda s: _window(s, _CONV, 1, 3)),
        {"contextStart": 1, "contextLength": 3, "contextStride": 1},
        label="ahead",
    ),
    Case("row_conv", {"X": _FULL, "Filter": _ROWS}, joined(_FULL, lambda s: _ahead(s, _ROWS))),
    Case(
        "row_conv",
        {"X": numbers(2, 4, 3), "Filter": _ROWS},
        np.stack([_ahead(s, _ROWS) for s in numbers(2, 4, 3)]),
        label="batch",
    ),
    Case(
        "sequence_expand",
        {"X": _SHORT, "Y": lod(_STEPS, [2, 0, 5])},
        np.repeat(_SHORT, [2, 0, 5], axis=0),
        {"ref_level": -1},
        grads=("X",),
    ),
    Case(
        "sequence_expand",
        {"X": _A, "Y": lod(_STEPS, [3, 1], [2, 1, 2, 2])},
        np.concatenate([_A.array[:2]] * 3 + [_A.array[2:]]),
        {"ref_level": 0},
        grads=("X",),
        label="sequences",
        out_lod={"Out": [[2, 2, 2, 3]]},
    ),
    Case(
        "sequence_expand_as",
        {"X": _SHORT, "Y": _X},
        np.repeat(_SHORT, [3, 0, 4], axis=0),
        grads=("X",),
        out_lod={"Out": [[3, 0, 4]]},
    ),
    Case(
        "sequence_pad",
        {"X": _X, "PadValue": np.array([5.0], "float32")},
        {"Out": _padded(_X, 5.0, 6), "Length": np.array([3, 0, 4])},
        {"padded_length": 6},
        grads=("X",),
        batch=False,
    ),
    Case(
        "sequence_unpad",
        {"X": numbers(2, 3, 2), "Length": np.array([1, 3])},
        np.concatenate([numbers(2, 3, 2)[0, :1], numbers(2, 3, 2)[1]]),
        out_lod={"Out": [[1, 3]]},
    ),
    Case(
        "sequence_concat",
        {"X": [_A, _B]},
        np.concatenate([_A.array[:2], _B.array[:1], _A.array[2:], _B.array[1:]]),
        out_lod={"Out": [[3, 6]]},
    ),
    Case(
        "sequence_reshape",
        {"X": lod(numbers(6, 2), [2, 4])},
        numbers(6, 2).reshape(-1, 4),
        {"new_dim": 4},
        out_lod={"Out": [[1, 2]]},
    ),
    Case(
        "sequence_slice",
        {"X": _FULL, "Offset": np.array([[1], [0]]), "Length": np.array([[2], [3]])},
        np.concatenate([_STEPS[1:3], _STEPS[3:6]]),
        grads=("X",),
        out_lod={"Out": [[2, 3]]},
    ),
    Case("sequence_reverse", {"X": _X}, joined(_X, lambda s: s[::-1]), grads=("X",)),
    Case(
        "sequence_enumerate",
        {"X": _IDS},
        np.concatenate(
            [
                [[s[t + k, 0] if t + k < len(s) else 9 for k in range(2)] for t in range(len(s))]
                for s in split(_IDS)
            ]
        ),
        {"win_size": 2, "pad_value": 9},
        out_lod={"Out": [[2, 4]]},
    ),
    Case(
        "sequence_erase",
        {"X": lod(np.array([[1], [2], [3], [2], [2]]), [2, 3])},
        np.array([[1], [3]]),
        {"tokens": [2]},
        out_lod={"Out": [[1, 1]]},
    ),
    Case(
        "sequence_scatter",
        {
            "X": numbers(2, 4),
            "Ids": lod(np.array([[1], [1], [3]]), [2, 1]),
            "Updates": lod(numbers(3, 1, seed=3), [2, 1]),
        },
        numbers(2, 4)
        + np.array(
            [
                [0, numbers(3, 1, seed=3)[:2].sum(), 0, 0],
                [0, 0, 0, numbers(3, 1, seed=3)[2, 0]],
            ],
            "float32",
        ),
    ),
    Case(
        "sequence_mask",
        {"X": np.array([2, 0, 3])},
        np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]]),
        {"out_dtype": 3},
    ),
    Case(
        "sequence_mask",
        {"X": np.array([2, 1]), "MaxLenTensor": np.array([4], "int32")},
        np.array([[1, 1, 0, 0], [1, 0, 0, 0]], "float32"),
        {"out_dtype": 5},
        label="tensor",
    ),
    Case("lod_reset", {"X": _X}, _STEPS, {"target_lod": [0, 2, 7]}, out_lod={"Out": [[2, 5]]}),
    Case(
        "lod_reset",
        {"X": _STEPS, "Y": _X},
        _STEPS,
        grads=("X",),
        label="like",
        out_lod={"Out": [[3, 0, 4]]},
    ),
    Case(
        "lod_reset",
        {"X": _FULL},
        _STEPS,
        {"target_lod": list(range(8)), "append": True},
        label="append",
        out_lod={"Out": [[3, 4], [1] * 7]},
    ),
    Case(
        "im2sequence",
        {"X": _IMAGE},
        np.stack(
            [
                image[:, i : i + 2, j : j + 2].reshape(-1)
                for image in _IMAGE
                for i in (0, 2)
                for j in (0, 2)
            ]
        ),
        {
            "kernels": [2, 2],
            "strides": [2, 2],
            "paddings": [0, 0, 0, 0],
            "out_stride": [1, 1],
        },
        out_lod={"Out": [[4, 4]]},
    ),
    Case(  # what is left over at the right and below belongs to no window
        "im2sequence",
        {"X": _IMAGE},
        np.stack(
            [
                image[:, i : i + 2, j : j + 1].reshape(-1)
                for image in np.pad(_IMAGE, [(0, 0), (0, 0), (1, 0), (0, 2)])
                for i in (0, 2)
                for j in (0, 4)
            ]
        ),
        {"kernels": [2, 1], "strides": [2, 4], "paddings": [1, 0, 0, 2], "out_stride": [1, 1]},
        out_lod={"Out": [[4, 4]]},
        label="remainder",
    ),
]
