"""Beam search: choosing the best continuations, and reading the sentences back.

A beam has two levels of sequences: the prefixes of each source, and the continuations of each
prefix. Choosing is host work on a few numbers per prefix.
"""

from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, LoDTensorArray, WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import from_lengths, owners
from .table import Infer, no_gradient, op


def _selected_shapes(ctx: Infer) -> None:
    ctx.set("selected_ids", (-1, 1), VarType.INT64, lod_level=0)
    ctx.set("selected_scores", (-1, 1), ctx.x("pre_scores").dtype, lod_level=0)
    ctx.set("parent_idx", (-1,), VarType.INT32, lod_level=0)


class _Candidates(NamedTuple):
    """Continuations: the prefix each belongs to, its word and its score."""

    row: Array
    word: Array
    score: Array

    def taken(self, chosen: Array) -> "_Candidates":
        return _Candidates(self.row[chosen], self.word[chosen], self.score[chosen])


def _candidates(
    pre_ids: Array, pre_scores: Array, ids: Array, scores: Array, end_id: int
) -> _Candidates:
    """All words after a running prefix; a finished one goes on as it is."""
    ended = pre_ids == end_id
    row, column = np.nonzero(~ended[:, None] & np.ones(scores.shape, dtype=bool))
    done = np.nonzero(ended)[0]
    return _Candidates(
        np.concatenate([row, done]),
        np.concatenate([ids[row, column], np.full(len(done), end_id)]),
        np.concatenate([scores[row, column], pre_scores[done]]),
    )


def _best(found: _Candidates, source: Array, beam_size: int) -> _Candidates:
    """The best `beam_size` of each source, in the order of their prefixes, best first."""
    order = np.lexsort((-found.row, -found.score, source[found.row]))
    sources = source[found.row][order]
    starts = np.searchsorted(sources, sources, side="left")
    best = found.taken(order[np.arange(len(order)) - starts < beam_size])
    return best.taken(np.lexsort((-best.score, best.row)))


@op(
    "beam_search",
    infer=_selected_shapes,
    grad=no_gradient,
    returns="selected_ids selected_scores parent_idx",
    lod=None,
)
def beam_search(
    xp: Array,
    pre_ids: Array,
    pre_scores: Array,
    ids: Array,
    scores: Array,
    scores_lod: Any,
    level: int,
    beam_size: int,
    end_id: int,
    is_accumulated: bool | None,
) -> tuple[Any, Any, Any]:
    """The best continuations of each source's prefixes; a source whose beam has ended drops out."""
    if len(scores_lod) < level + 2:
        raise InvalidArgument(
            f"beam_search needs scores with {level + 2} levels of sequences",
            hint="start with a LoD of [[1, ...], [1, ...]], one prefix per source",
        )
    before, so_far = to_host(pre_ids).reshape(-1), to_host(pre_scores).reshape(-1)
    score = to_host(scores).reshape(len(before), -1)
    if is_accumulated is False:
        score = so_far[:, None] + np.log(score)
    words = np.broadcast_to(np.arange(score.shape[1]), score.shape)
    if ids is not None:
        words = to_host(ids).reshape(score.shape)
    offsets = scores_lod[level]
    for inner in scores_lod[level + 1 :]:
        offsets = inner[offsets]
    source = owners(offsets)
    best = _best(_candidates(before, so_far, words, score, end_id), source, beam_size)
    running = np.zeros(len(offsets) - 1, dtype=bool)
    unfinished = (best.word != end_id) | (before[best.row] != end_id)
    running[source[best.row[unfinished]]] = True
    best = best.taken(np.nonzero(running[source[best.row]])[0])
    per_prefix = np.bincount(best.row, minlength=len(before))
    lod = (offsets, from_lengths(per_prefix))
    return (
        WithLoD(xp.asarray(best.word.reshape(-1, 1).astype(np.int64)), lod),
        WithLoD(xp.asarray(best.score.reshape(-1, 1).astype(scores.dtype)), lod),
        xp.asarray(best.row.astype(np.int32)),
    )


# -- reading back -----------------------------------------------------------------------------
class _Step(NamedTuple):
    """One element of the arrays: words and scores with their two levels."""

    words: Array
    scores: Array
    prefixes: Array
    continuations: Array


def _steps(ids: LoDTensorArray, scores: LoDTensorArray) -> list[_Step]:
    found = []
    for words, values in zip(ids, scores, strict=True):
        lod = words.offsets if isinstance(words, LoDTensor) else ()
        if len(lod) != 2:
            raise InvalidArgument(
                "beam_search_decode needs arrays of what beam_search selected",
                hint="write selected_ids and selected_scores with array_write in every step",
            )
        first, second = (to_host(v.array).reshape(-1) for v in (words, values))
        found.append(_Step(first, second, lod[0], lod[1]))
    return found


class _Sentence(NamedTuple):
    words: list[int]
    scores: list[float]


def _sentences(steps: list[_Step], source: int, end_id: int) -> list[_Sentence]:
    """The sentences of one source, from their last words back to their first."""
    found: list[_Sentence] = []
    at = np.zeros(0, dtype=np.int64)
    for step in reversed(steps):
        begin, end = step.prefixes[source], step.prefixes[source + 1]
        if not found:
            rows = np.arange(step.continuations[begin], step.continuations[end])
            found = [_Sentence([], []) for _ in rows]
            at = rows
        for sentence, row in zip(found, at.tolist(), strict=True):
            if step.words[row] != end_id or not sentence.words:
                sentence.words.append(int(step.words[row]))
                sentence.scores.append(float(step.scores[row]))
        at = np.searchsorted(step.continuations, at, side="right") - 1
    return sorted(found, key=lambda sentence: -sentence.scores[0])


def _decoded_shapes(ctx: Infer) -> None:
    ctx.set("SentenceIds", (-1,), VarType.INT64)
    ctx.set("SentenceScores", (-1,), VarType.FP32)


@op(
    "beam_search_decode",
    infer=_decoded_shapes,
    grad=no_gradient,
    returns="SentenceIds SentenceScores",
    lod=None,
)
def beam_search_decode(
    xp: Array, Ids: LoDTensorArray, Ids_lod: Any, Scores: LoDTensorArray, end_id: int
) -> tuple[WithLoD, WithLoD]:
    """The sentences of each source, best first."""
    steps = _steps(Ids, Scores)
    sources = len(steps[0].prefixes) - 1 if steps else 0
    beams = [_sentences(steps, source, end_id) for source in range(sources)]
    every = [sentence for beam in beams for sentence in beam]
    lod = (
        from_lengths(np.array([len(beam) for beam in beams], dtype=np.int64)),
        from_lengths(np.array([len(s.words) for s in every], dtype=np.int64)),
    )
    words = np.array([w for s in every for w in reversed(s.words)], dtype=np.int64)
    scores = np.array([v for s in every for v in reversed(s.scores)], dtype=np.float32)
    return WithLoD(xp.asarray(words), lod), WithLoD(xp.asarray(scores), lod)


def _tree_shape(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("Ids"))


@op("gather_tree", infer=_tree_shape)
def gather_tree(xp: Array, Ids: Array, Parents: Array) -> Array:
    """Whole beams, followed from their last step to their first: (step, batch, beam)."""
    out = xp.empty_like(Ids)
    if not len(Ids):
        return out
    at = xp.broadcast_to(xp.arange(Ids.shape[2]), Ids.shape[1:])
    for t in range(len(Ids) - 1, -1, -1):
        out[t] = xp.take_along_axis(Ids[t], at, axis=1)
        at = xp.take_along_axis(Parents[t], at, axis=1)
    return out
