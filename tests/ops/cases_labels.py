"""Cases of CRF, CTC, chunks, edit distance and beams: all paths are counted one by one."""

import itertools
from typing import Any

import numpy as np

from bireme.arrays.values import LoDTensor, LoDTensorArray

from .case import Case, lod, numbers
from .cases_sequence import split

Array = Any


def _score(x: Array, path: tuple[int, ...], w: Array) -> float:
    moves = sum(w[2 + a, b] for a, b in itertools.pairwise(path))
    return float(w[0, path[0]] + w[1, path[-1]] + moves + sum(x[t, k] for t, k in enumerate(path)))


def _paths(x: Array) -> list[tuple[int, ...]]:
    return list(itertools.product(range(x.shape[1]), repeat=len(x)))


def _loss(x: Array, label: Array, w: Array) -> float:
    every = np.exp([_score(x, path, w) for path in _paths(x)]).sum()
    return float(np.log(every) - _score(x, tuple(label.reshape(-1).tolist()), w))


def _best(x: Array, w: Array) -> list[int]:
    return list(max(_paths(x), key=lambda path: _score(x, path, w)))


def _collapsed(path: tuple[int, ...], blank: int) -> list[int]:
    return [k for k, _ in itertools.groupby(path) if k != blank]


def _ctc(x: Array, label: list[int], blank: int) -> float:
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    fits = (path for path in _paths(x) if _collapsed(path, blank) == label)
    return float(-np.log(sum(np.prod([p[t, k] for t, k in enumerate(path)]) for path in fits)))


_E = lod(numbers(5, 3, seed=1), [2, 3])
_L = lod(np.array([[0], [2], [1], [1], [0]]), [2, 3])
_W = numbers(5, 3, seed=2)
_DENSE = np.stack([_E.array[:3], _E.array[2:]])
_TAGS = np.array([[[0], [2], [0]], [[1], [1], [0]]])
_LENGTH = np.array([[2], [3]])
_LOSSES = np.array(
    [[_loss(x, t, _W)] for x, t in zip(split(_E), split(_L), strict=True)], "float32"
)
_BEST = np.array([k for x in split(_E) for k in _best(x, _W)]).reshape(-1, 1)
_LOGITS = lod(numbers(7, 3, seed=3), [3, 4])
_WORDS = lod(np.array([[1], [2], [2]], "int32"), [1, 2])
_CTC = np.array(
    [
        [_ctc(x, w.reshape(-1).tolist(), 0)]
        for x, w in zip(split(_LOGITS), split(_WORDS), strict=True)
    ],
    "float32",
)
_SPLIT = {"SequenceNum": np.array([2])}


def _column(values: list[Any], *lengths: list[int]) -> LoDTensor:
    kind = "int64" if isinstance(values[0], int) else "float32"
    return lod(np.array(values, kind).reshape(-1, 1), *lengths)


# words, scores, and the lengths of prefixes and continuations of four steps
_BEAM: list[tuple[list[int], list[float], list[list[int]]]] = [
    ([0, 0], [0.0, 0.0], [[1, 1], [1, 1]]),
    ([2, 3, 4, 5], [0.2, 0.3, 0.4, 0.5], [[1, 1], [2, 2]]),
    ([3, 0, 6, 7], [0.5, 0.6, 0.7, 0.8], [[2, 2], [1, 1, 1, 1]]),
    ([0, 0, 8, 0], [0.9, 0.8, 1.0, 0.5], [[2, 2], [1, 1, 2, 0]]),
]

CASES = [
    Case(
        "linear_chain_crf",
        {"Emission": _E, "Transition": _W, "Label": _L},
        {"LogLikelihood": _LOSSES},
        batch=False,
    ),
    Case(
        "linear_chain_crf",
        {"Emission": _DENSE, "Transition": _W, "Label": _TAGS, "Length": _LENGTH},
        {
            "LogLikelihood": np.array(
                [[_loss(_DENSE[0, :2], _TAGS[0, :2], _W)], [_loss(_DENSE[1], _TAGS[1], _W)]],
                "float32",
            )
        },
        label="dense",
        batch=False,
    ),
    Case(
        "crf_decoding",
        {"Emission": _E, "Transition": _W},
        _BEST,
        out_lod={"ViterbiPath": [[2, 3]]},
    ),
    Case(
        "crf_decoding",
        {"Emission": _E, "Transition": _W, "Label": _L},
        (_L.array == _BEST).astype("int64"),
        label="judged",
    ),
    Case(
        "crf_decoding",
        {"Emission": _DENSE, "Transition": _W, "Length": _LENGTH},
        np.array([[*_best(_DENSE[0, :2], _W), 0], _best(_DENSE[1], _W)]),
        label="dense",
    ),
    Case(
        "chunk_eval",
        {
            "Inference": lod(np.array([[0], [1], [4], [2], [3]]), [3, 2]),
            "Label": lod(np.array([[0], [1], [4], [2], [2]]), [3, 2]),
        },
        {
            "Precision": np.array([0.5], "float32"),
            "Recall": np.array([1 / 3], "float32"),
            "F1-Score": np.array([0.4], "float32"),
            "NumInferChunks": np.array([2]),
            "NumLabelChunks": np.array([3]),
            "NumCorrectChunks": np.array([1]),
        },
        {"num_chunk_types": 2, "chunk_scheme": "IOB"},
    ),
    Case(
        "chunk_eval",
        {
            "Inference": np.array([[0, 1, 9], [1, 1, 0]]),
            "Label": np.array([[0, 1, 9], [1, 0, 0]]),
            "SeqLength": np.array([2, 3]),
        },
        {
            "NumInferChunks": np.array([2]),
            "NumLabelChunks": np.array([2]),
            "NumCorrectChunks": np.array([1]),
        },
        {"num_chunk_types": 2, "chunk_scheme": "plain", "excluded_chunk_types": [0]},
        label="dense",
    ),
    Case(
        "warpctc",
        {"Logits": _LOGITS, "Label": _WORDS},
        {"Loss": _CTC},
        {"norm_by_times": False},
    ),
    Case(
        "warpctc",
        {"Logits": _LOGITS, "Label": lod(np.array([[1], [0], [2]], "int32"), [1, 2])},
        {"Loss": None},
        {"norm_by_times": False},
        label="of_a_blank",
    ),
    Case(
        "ctc_align",
        {"Input": lod(np.array([[1], [1], [0], [1], [2], [0]]), [4, 2])},
        {"Output": np.array([[1], [1], [2]])},
        {"blank": 0, "merge_repeated": True},
        out_lod={"Output": [[2, 1]]},
        batch=False,
    ),
    Case(
        "ctc_align",
        {"Input": np.array([[1, 1, 0, 2], [3, 0, 3, 3]]), "InputLength": np.array([[4], [3]])},
        {"Output": np.array([[1, 2, 7, 7], [3, 3, 7, 7]]), "OutputLength": np.array([[2], [2]])},
        {"blank": 0, "merge_repeated": True, "padding_value": 7},
        label="dense",
    ),
    Case(
        "edit_distance",
        {
            "Hyps": lod(np.array([[1], [2], [3], [4]]), [3, 1]),
            "Refs": lod(np.array([[1], [3], [5], [6]]), [2, 2]),
        },
        {"Out": np.array([[1.0], [2.0]], "float32"), **_SPLIT},
    ),
    Case(
        "edit_distance",
        {
            "Hyps": np.array([[1, 2, 3], [4, 0, 0]]),
            "Refs": np.array([[1, 3], [5, 6]]),
            "HypsLength": np.array([3, 1]),
            "RefsLength": np.array([2, 2]),
        },
        {"Out": np.array([[0.5], [1.0]], "float32"), **_SPLIT},
        {"normalized": True},
        label="dense",
    ),
    Case(
        "beam_search",
        {
            "pre_ids": lod(np.array([[1], [2], [0], [4]]), [2, 2], [1, 1, 1, 1]),
            "pre_scores": lod(np.array([[0.1], [0.2], [0.6], [0.4]], "float32"), [2, 2], [1] * 4),
            "ids": lod(np.array([[4, 2, 5], [2, 1, 3], [3, 5, 2], [8, 2, 1]]), [2, 2], [1] * 4),
            "scores": lod(
                np.array(
                    [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.9, 0.5, 0.1], [0.7, 0.5, 0.1]], "float32"
                ),
                [2, 2],
                [1] * 4,
            ),
        },
        {
            "selected_ids": np.array([[4], [2], [0], [8]]),
            "selected_scores": np.array([[0.5], [0.6], [0.6], [0.7]], "float32"),
            "parent_idx": np.array([0, 1, 2, 3], "int32"),
        },
        {"level": 0, "beam_size": 2, "end_id": 0, "is_accumulated": True},
        grads=(),
        out_lod={"selected_ids": [[2, 2], [1, 1, 1, 1]]},
    ),
    Case(
        "beam_search_decode",
        {
            "Ids": LoDTensorArray(_column(w, *at) for w, _, at in _BEAM),
            "Scores": LoDTensorArray(_column(v, *at) for _, v, at in _BEAM),
        },
        {
            "SentenceIds": np.array([2, 3, 0, 3, 0, 4, 6, 8, 4, 6, 0]),
            "SentenceScores": np.array(
                [0.2, 0.5, 0.9, 0.3, 0.8, 0.4, 0.7, 1.0, 0.4, 0.7, 0.5], "float32"
            ),
        },
        {"beam_size": 2, "end_id": 0},
        grads=(),
        out_lod={"SentenceIds": [[2, 2], [3, 2, 3, 3]]},
        batch=False,
    ),
    Case(
        "gather_tree",
        {
            "Ids": np.array([[[2, 2], [6, 1]], [[3, 9], [6, 1]], [[0, 1], [9, 0]]]),
            "Parents": np.array([[[0, 0], [1, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 1]]]),
        },
        np.array([[[2, 2], [1, 6]], [[3, 3], [6, 1]], [[0, 1], [9, 0]]]),
    ),
]
