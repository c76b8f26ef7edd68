"""Linear-chain conditional random fields: likelihood, decoding, and the evaluation of chunks.

Transition has the scores of starting (row 0), of ending (row 1), and from tag to tag. Sequences are
padded to a rectangle, and each step is one operation over all of them, in log space.
"""

from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import Padded, lod_of, offsets_of, pad, padded_index, unpad
from .table import GradOp, Infer, op


class _Batch(NamedTuple):
    """Sequences as (sequence, step, ...), and how to get back."""

    padded: Padded
    emission: Array
    mask: Array
    rows: int
    dense: bool

    def restored(self, xp: Array, values: Array) -> Array:
        if self.dense:
            return xp.where(self.mask[..., None], values, 0)
        return unpad(xp, values, self.padded, self.rows)


def _batch(xp: Array, emission: Array, lod: Any, length: Array) -> _Batch:
    if length is not None:
        lengths = to_host(length).reshape(-1)
        steps = emission.shape[1]
        mask = np.arange(steps) < lengths[:, None]
        index = np.arange(len(lengths) * steps).reshape(len(lengths), steps)
        return _Batch(Padded(index, mask), emission, xp.asarray(mask), emission.size, True)
    padded = padded_index(offsets_of(lod, "linear_chain_crf", 0))
    wide = pad(xp, emission, padded)
    return _Batch(padded, wide, xp.asarray(padded.mask), len(emission), False)


def _tags(xp: Array, batch: _Batch, label: Array) -> Array:
    if batch.dense:
        return label.reshape(batch.mask.shape)
    return pad(xp, label.reshape(-1), batch.padded)


def _logsumexp(xp: Array, x: Array, axis: int) -> Array:
    top = x.max(axis=axis, keepdims=True)
    return xp.log(xp.exp(x - top).sum(axis=axis)) + xp.squeeze(top, axis)


def _last_steps(xp: Array, mask: Array) -> tuple[Array, Array]:
    """Index pairs of the last step of each sequence."""
    return xp.arange(len(mask)), mask.sum(axis=1) - 1


def _forward(xp: Array, batch: _Batch, transition: Array) -> Array:
    """log alpha: (sequence, step, tag); past the end it stays what it was."""
    start, between = transition[0], transition[2:]
    alpha = xp.empty_like(batch.emission)
    if not alpha.size:
        return alpha
    alpha[:, 0] = start + batch.emission[:, 0]
    for t in range(1, alpha.shape[1]):
        score = _logsumexp(xp, alpha[:, t - 1, :, None] + between, 1) + batch.emission[:, t]
        alpha[:, t] = xp.where(batch.mask[:, t, None], score, alpha[:, t - 1])
    return alpha


def _backward(xp: Array, batch: _Batch, transition: Array) -> Array:
    """log beta: (sequence, step, tag)."""
    end, between = transition[1], transition[2:]
    beta = xp.empty_like(batch.emission)
    beta[:, -1] = end
    for t in range(beta.shape[1] - 2, -1, -1):
        onward = between + (batch.emission[:, t + 1] + beta[:, t + 1])[:, None, :]
        beta[:, t] = xp.where(batch.mask[:, t + 1, None], _logsumexp(xp, onward, 2), end)
    return beta


def _path_score(xp: Array, batch: _Batch, tags: Array, transition: Array) -> Array:
    chosen = xp.take_along_axis(batch.emission, tags[..., None], axis=2)[..., 0]
    score = (chosen * batch.mask).sum(axis=1)
    moves = transition[2:][tags[:, :-1], tags[:, 1:]] * batch.mask[:, 1:]
    at = _last_steps(xp, batch.mask)
    return score + moves.sum(axis=1) + transition[0][tags[:, 0]] + transition[1][tags[at]]


def _crf_shapes(ctx: Infer) -> None:
    x = ctx.x("Emission")
    tags = x.shape[-1]
    if ctx.x("Transition").shape != (tags + 2, tags):
        raise InvalidArgument(
            f"linear_chain_crf with {tags} tags needs transitions [{tags + 2}, {tags}], "
            f"got {list(ctx.x('Transition').shape)}"
        )
    for slot in ("Alpha", "EmissionExps"):
        ctx.set(slot, x.shape, x.dtype, lod_level=0)
    ctx.set("TransitionExps", like=ctx.x("Transition"))
    ctx.set("LogLikelihood", (-1, 1), x.dtype, lod_level=0)


@op(
    "linear_chain_crf",
    infer=_crf_shapes,
    grad=GradOp(
        uses=(
            *("Emission", "Transition", "Label", "Length"),
            *("Alpha", "EmissionExps", "TransitionExps"),
        ),
        wrt=("Emission", "Transition"),
        of=("LogLikelihood",),
    ),
    returns="LogLikelihood Alpha EmissionExps TransitionExps",
    lod=None,
)
def linear_chain_crf(
    xp: Array,
    Emission: Array,
    Emission_lod: Any,
    Transition: Array,
    Label: Array,
    Length: Array,
) -> tuple[Array, ...]:
    """The negative log-likelihood of each sequence of labels; Alpha holds the probability of each
    tag, given the steps up to it.
    """
    batch = _batch(xp, Emission, Emission_lod, Length)
    alpha = _forward(xp, batch, Transition)
    at = _last_steps(xp, batch.mask)
    total = _logsumexp(xp, alpha[at] + Transition[1], 1)
    loss = total - _path_score(xp, batch, _tags(xp, batch, Label), Transition)
    loss = xp.where(batch.mask[:, :1].any(axis=1), loss, 0)  # an empty sequence is certain
    top = Emission.max(axis=-1, keepdims=True) if Emission.size else Emission
    return (
        loss.reshape(-1, 1).astype(Emission.dtype),
        batch.restored(xp, xp.exp(alpha - _logsumexp(xp, alpha, 2)[..., None])),
        xp.exp(Emission - top),
        xp.exp(Transition),
    )


@op("linear_chain_crf_grad", lod=lod_of("Emission@GRAD", "Emission"))
def linear_chain_crf_grad(
    xp: Array,
    Emission: Array,
    Emission_lod: Any,
    Transition: Array,
    Label: Array,
    Length: Array,
    Alpha: Array,
    dLogLikelihood: Array,
) -> tuple[Array, Array]:
    """Expected minus observed counts."""
    batch = _batch(xp, Emission, Emission_lod, Length)
    tags = _tags(xp, batch, Label)
    alpha = _forward(xp, batch, Transition)
    beta = _backward(xp, batch, Transition)
    at = _last_steps(xp, batch.mask)
    total = _logsumexp(xp, alpha[at] + Transition[1], 1)[:, None, None]
    weight = dLogLikelihood.reshape(-1, 1, 1)
    kinds = xp.arange(Transition.shape[1])
    observed = (tags[..., None] == kinds).astype(Emission.dtype)
    error = (xp.exp(alpha + beta - total) - observed) * weight * batch.mask[..., None]
    grad = xp.zeros_like(Transition)
    grad[0], grad[1] = error[:, 0].sum(axis=0), error[at].sum(axis=0)
    for t in range(1, alpha.shape[1]):
        onward = (batch.emission[:, t] + beta[:, t])[:, None, :] - total
        pairs = xp.exp(alpha[:, t - 1, :, None] + Transition[2:] + onward)
        pairs -= observed[:, t - 1, :, None] * observed[:, t, None, :]
        grad[2:] += (pairs * (weight * batch.mask[:, t, None, None])).sum(axis=0)
    return batch.restored(xp, error).reshape(Emission.shape), grad


# -- decoding ---------------------------------------------------------------------------------
def _path_shape(ctx: Infer) -> None:
    x = ctx.x("Emission")
    shape = x.shape[:2] if ctx.input("Length") is not None else (x.shape[0], 1)
    ctx.set("ViterbiPath", shape, VarType.INT64, lod_level=x.lod_level)


def _best_paths(xp: Array, batch: _Batch, transition: Array) -> Array:
    """The likeliest tags: (sequence, step)."""
    score = transition[0] + batch.emission[:, 0]
    back = []
    for t in range(1, batch.emission.shape[1]):
        moves = score[:, :, None] + transition[2:]
        stay = xp.broadcast_to(xp.arange(score.shape[1]), score.shape)
        running = batch.mask[:, t, None]
        back.append(xp.where(running, moves.argmax(axis=1), stay))
        score = xp.where(running, moves.max(axis=1) + batch.emission[:, t], score)
    tags = [(score + transition[1]).argmax(axis=1)]
    for choice in reversed(back):
        tags.append(xp.take_along_axis(choice, tags[-1][:, None], axis=1)[:, 0])
    return xp.stack(tags[::-1], axis=1).astype(xp.int64)


@op("crf_decoding", infer=_path_shape, lod="Emission")
def crf_decoding(
    xp: Array,
    Emission: Array,
    Emission_lod: Any,
    Transition: Array,
    Label: Array,
    Length: Array,
) -> Array:
    """The likeliest tags; with Label, where they are right."""
    batch = _batch(xp, Emission, Emission_lod, Length)
    paths = _best_paths(xp, batch, Transition)
    if batch.dense:
        paths = xp.where(batch.mask, paths, 0)
    else:
        paths = unpad(xp, paths, batch.padded, batch.rows).reshape(-1, 1)
    if Label is None:
        return paths
    right = (paths == Label.reshape(paths.shape)).astype(xp.int64)
    return xp.where(batch.mask, right, 0) if batch.dense else right


# -- chunks -----------------------------------------------------------------------------------
_SCHEMES = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "S"}


class _Chunks(NamedTuple):
    """One entry per row: the tag's letter and type, and whether a sequence begins there."""

    letter: Array
    kind: Array
    first: Array

    def spans(self, excluded: Any) -> set[tuple[int, int, int]]:
        """(first row, last row, type) of every chunk."""
        begins, ends = self._begins(), self._ends()
        wanted = ~np.isin(self.kind, np.array(excluded, dtype=np.int64))
        starts = np.nonzero(begins)[0]
        last = np.nonzero(ends)[0]
        stops = last[np.searchsorted(last, starts)]
        chosen = wanted[starts]
        triples = zip(starts[chosen], stops[chosen], self.kind[starts[chosen]], strict=True)
        return {(int(a), int(b), int(c)) for a, b, c in triples}

    def _inside(self) -> Array:
        return self.kind >= 0

    def _begins(self) -> Array:
        """A chunk begins where its letter says so, or where the row before is no part of it."""
        before_kind, before = np.roll(self.kind, 1), np.roll(self.letter, 1)
        broken = self.first | (before_kind != self.kind) | np.isin(before, ("E", "S"))
        return self._inside() & (broken | np.isin(self.letter, ("B", "S")))

    def _ends(self) -> Array:
        """A chunk ends where its letter says so, or where the next row begins one or is outside."""
        begins = self._begins()
        last = np.roll(self.first, -1) if len(self.first) else self.first
        next_outside = np.roll(~self._inside(), -1)
        return self._inside() & (last | np.roll(begins, -1) | next_outside)


def _chunks(tags: Array, offsets: Array, scheme: str, kinds: int) -> _Chunks:
    letters = _SCHEMES.get(scheme)
    if letters is None:
        raise InvalidArgument(
            f"chunk scheme {scheme!r} is not known", hint=f"use one of {', '.join(_SCHEMES)}"
        )
    count = len(letters)
    kind = np.where(tags < kinds * count, tags // count, -1)
    letter = np.array(list(letters))[tags % count]
    if scheme == "plain":
        letter = np.full(len(tags), "I")
    first = np.zeros(len(tags), dtype=bool)
    first[offsets[:-1][offsets[:-1] < len(tags)]] = True
    return _Chunks(letter, kind, first)


def _eval_shapes(ctx: Infer) -> None:
    for slot in ("Precision", "Recall", "F1-Score"):
        ctx.set(slot, (1,), VarType.FP32)
    for slot in ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks"):
        ctx.set(slot, (1,), VarType.INT64)


@op(
    "chunk_eval",
    infer=_eval_shapes,
    returns="Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks",
    lod=None,
)
def chunk_eval(
    xp: Array,
    Inference: Array,
    Inference_lod: Any,
    Label: Array,
    SeqLength: Array,
    num_chunk_types: int,
    chunk_scheme: str,
    excluded_chunk_types: Any,
) -> tuple[Array, ...]:
    """How many chunks were found, and how many of them are right."""
    found, right = to_host(Inference), to_host(Label)
    if SeqLength is not None:
        lengths = to_host(SeqLength).reshape(-1)
        kept = np.arange(found.shape[1]) < lengths[:, None]
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        found, right = (v.reshape(kept.shape)[kept] for v in (found, right))
    else:
        offsets = offsets_of(Inference_lod, "chunk_eval", 0)
    excluded = excluded_chunk_types or ()
    spans = [
        _chunks(v.reshape(-1), offsets, chunk_scheme, num_chunk_types).spans(excluded)
        for v in (found, right)
    ]
    guessed, true, correct = len(spans[0]), len(spans[1]), len(spans[0] & spans[1])
    precision = correct / guessed if guessed else 0.0
    recall = correct / true if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    scores = (xp.asarray([v], dtype=np.float32) for v in (precision, recall, f1))
    counts = (xp.asarray([v], dtype=np.int64) for v in (guessed, true, correct))
    return (*scores, *counts)
