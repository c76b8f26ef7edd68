"""Connectionist temporal classification, its decoder, and the edit distance between sequences.

Sequences are padded to a rectangle; each step is one operation over all of them, in log space.
"""

from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import from_lengths, offsets_of, pad, padded_index, unpad
from .table import GradOp, Infer, op

_NEVER = -1e30


class _Batch(NamedTuple):
    """(sequence, step, ...) with the length of each sequence on the host."""

    values: Array
    lengths: Array


def _sequences(xp: Array, x: Array, lod: Any, length: Array, *, time_major: bool) -> _Batch:
    if length is not None:
        values = x.swapaxes(0, 1) if time_major else x
        return _Batch(values, to_host(length).reshape(-1).astype(np.int64))
    offsets = offsets_of(lod, "this operator", 0)
    return _Batch(pad(xp, x, padded_index(offsets)), np.diff(offsets))


# -- loss -------------------------------------------------------------------------------------
def _loss_shape(ctx: Infer) -> None:
    ctx.set("Loss", (-1, 1), ctx.x("Logits").dtype, lod_level=0)


class _Lattice(NamedTuple):
    """Log probabilities of the labels with blanks between them: (sequence, step, state)."""

    scores: Array
    skips: Array
    states: Array
    times: Array
    ends: Array


def _lattice(xp: Array, logits: _Batch, labels: _Batch, blank: int) -> tuple[_Lattice, Array]:
    top = logits.values.max(axis=2, keepdims=True)
    logs = logits.values - top
    logs = logs - xp.log(xp.exp(logs).sum(axis=2, keepdims=True))
    tags = labels.values.reshape(len(labels.lengths), -1)
    states = xp.full((len(tags), 2 * tags.shape[1] + 1), blank, dtype=np.int64)
    states[:, 1::2] = tags
    scores = xp.take_along_axis(logs, states[:, None, :].repeat(logs.shape[1], 1), axis=2)
    skips = xp.zeros(states.shape, dtype=bool)
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    return _Lattice(scores, skips, states, logits.lengths, 2 * labels.lengths), logs


def _shift(xp: Array, x: Array, by: int) -> Array:
    out = xp.full_like(x, _NEVER)
    if by > 0:
        out[:, by:] = x[:, :-by]
    else:
        out[:, :by] = x[:, -by:]
    return out


def _alphas(xp: Array, lattice: _Lattice) -> Array:
    scores = lattice.scores
    alpha = xp.full(scores.shape, _NEVER, dtype=scores.dtype)
    alpha[:, 0, :2] = scores[:, 0, :2]
    for t in range(1, scores.shape[1]):
        before = alpha[:, t - 1]
        skipped = xp.where(lattice.skips, _shift(xp, before, 2), _NEVER)
        total = xp.logaddexp(xp.logaddexp(before, _shift(xp, before, 1)), skipped)
        alpha[:, t] = total + scores[:, t]
    return alpha


def _betas(xp: Array, lattice: _Lattice) -> Array:
    """Log probability of what follows a state, without the state itself."""
    scores = lattice.scores
    beta = xp.full(scores.shape, _NEVER, dtype=scores.dtype)
    final = xp.full(scores[:, 0].shape, _NEVER, dtype=scores.dtype)
    rows = np.arange(len(final))
    final[rows, xp.asarray(lattice.ends)] = 0
    filled = np.nonzero(lattice.ends > 0)[0]
    final[filled, xp.asarray(lattice.ends[filled] - 1)] = 0
    times = xp.asarray(lattice.times)[:, None]
    for t in range(scores.shape[1] - 1, -1, -1):
        if t == scores.shape[1] - 1:
            beta[:, t] = xp.where(times - 1 == t, final, _NEVER)
            continue
        onward = beta[:, t + 1] + scores[:, t + 1]
        skipped = _shift(xp, xp.where(lattice.skips, onward, _NEVER), -2)
        total = xp.logaddexp(xp.logaddexp(onward, _shift(xp, onward, -1)), skipped)
        beta[:, t] = xp.where(times - 1 == t, final, total)
    return beta


def _ctc(xp: Array, logits: _Batch, labels: _Batch, blank: int) -> tuple[Array, Array]:
    """(loss of each sequence, its gradient by the logits).

    A sequence with too few steps for its labels adds nothing: its loss is 0, without a gradient.
    """
    lattice, logs = _lattice(xp, logits, labels, blank)
    joint = _alphas(xp, lattice) + _betas(xp, lattice)
    top = joint.max(axis=2)
    each = xp.log(xp.exp(joint - top[..., None]).sum(axis=2)) + top
    total = each[:, 0]
    posterior = xp.exp(joint - total[:, None, None])
    grad = xp.exp(logs)
    rows = np.arange(grad.shape[0])[:, None, None]
    steps = np.arange(grad.shape[1])[None, :, None]
    xp.add.at(grad, (rows, steps, lattice.states[:, None, :]), -posterior)
    inside = np.arange(grad.shape[1]) < lattice.times[:, None]
    possible = total > _NEVER / 2
    grad = xp.where(xp.asarray(inside)[..., None] & possible[:, None, None], grad, 0)
    return xp.where(possible, -total, 0), grad


@op(
    "warpctc",
    infer=_loss_shape,
    grad=GradOp(uses=("Logits", "WarpCTCGrad", "LogitsLength"), wrt=("Logits",), of=("Loss",)),
    returns="Loss WarpCTCGrad",
    lod=None,
)
def warpctc(
    xp: Array,
    Logits: Array,
    Logits_lod: Any,
    Label: Array,
    Label_lod: Any,
    LogitsLength: Array,
    LabelLength: Array,
    blank: int,
) -> tuple[Array, Array]:
    """The negative log-likelihood of the labels, over all ways to spread them over the steps."""
    logits = _sequences(xp, Logits, Logits_lod, LogitsLength, time_major=True)
    labels = _sequences(xp, Label, Label_lod, LabelLength, time_major=False)
    loss, grad = _ctc(xp, logits, labels, blank)
    return loss.reshape(-1, 1).astype(Logits.dtype), grad.astype(Logits.dtype)


@op("warpctc_grad", lod="Logits")
def warpctc_grad(
    xp: Array,
    Logits: Array,
    Logits_lod: Any,
    LogitsLength: Array,
    WarpCTCGrad: Array,
    dLoss: Array,
    norm_by_times: bool,
) -> Array:
    weight = dLoss.reshape(-1, 1, 1)
    if LogitsLength is not None:
        lengths = LogitsLength.reshape(-1, 1, 1)
        grad = WarpCTCGrad * (weight / lengths if norm_by_times else weight)
        return grad.swapaxes(0, 1).astype(Logits.dtype)
    offsets = offsets_of(Logits_lod, "warpctc_grad", 0)
    if norm_by_times:
        weight = weight / xp.asarray(np.diff(offsets)).reshape(-1, 1, 1)
    grad = (WarpCTCGrad * weight).astype(Logits.dtype)
    return unpad(xp, grad, padded_index(offsets), len(Logits))


# -- decoding ---------------------------------------------------------------------------------
def _aligned_shape(ctx: Infer) -> None:
    x = ctx.x("Input")
    rows = x.shape[0] if ctx.input("InputLength") is not None else -1
    ctx.set("Output", (rows, *x.shape[1:]), x.dtype, lod_level=0)
    ctx.set("OutputLength", (-1, 1), VarType.INT64, lod_level=0)


def _kept(ids: Array, first: Array, blank: int, merge: bool) -> Array:
    repeated = np.zeros(len(ids), dtype=bool)
    repeated[1:] = (ids[1:] == ids[:-1]) & ~first[1:]
    return (ids != blank) & ~(repeated if merge else np.zeros_like(repeated))


@op("ctc_align", infer=_aligned_shape, returns="Output OutputLength", lod=None)
def ctc_align(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    InputLength: Array,
    blank: int,
    merge_repeated: bool,
    padding_value: int,
) -> tuple[Any, Any]:
    """The ids without repetitions and blanks."""
    ids = to_host(Input)
    if InputLength is not None:
        found = _align_dense(ids, to_host(InputLength), blank, merge_repeated, padding_value)
        return xp.asarray(found[0]), xp.asarray(found[1])
    offsets = offsets_of(Input_lod, "ctc_align", 0)
    flat = ids.reshape(-1)
    first = np.zeros(len(flat), dtype=bool)
    first[offsets[:-1][offsets[:-1] < len(flat)]] = True
    kept = _kept(flat, first, blank, merge_repeated)
    counts = from_lengths(kept.astype(np.int64))[offsets]
    if not kept.any():
        return WithLoD(xp.full((1, 1), -1, dtype=Input.dtype), (counts,)), None
    return WithLoD(xp.asarray(flat[kept].reshape(-1, 1)), (counts,)), None


def _align_dense(
    ids: Array, length: Array, blank: int, merge: bool, fill: int
) -> tuple[Array, Array]:
    lengths = length.reshape(-1)
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    first = np.zeros(ids.shape, dtype=bool)
    first[:, 0] = True
    kept = _kept(ids.reshape(-1), first.reshape(-1), blank, merge).reshape(ids.shape) & inside
    counts = kept.sum(axis=1)
    out = np.full_like(ids, fill)
    out[np.arange(ids.shape[1]) < counts[:, None]] = ids[kept]
    return out, counts.reshape(-1, 1).astype(np.int64)


# -- edit distance ----------------------------------------------------------------------------
def _distance_shape(ctx: Infer) -> None:
    ctx.set("Out", (-1, 1), VarType.FP32, lod_level=0)
    ctx.set("SequenceNum", (1,), VarType.INT64, lod_level=0)


@op("edit_distance", infer=_distance_shape, returns="Out SequenceNum", lod=None)
def edit_distance(
    xp: Array,
    Hyps: Array,
    Hyps_lod: Any,
    Refs: Array,
    Refs_lod: Any,
    HypsLength: Array,
    RefsLength: Array,
    normalized: bool,
) -> tuple[Array, Array]:
    """Insertions, deletions and substitutions from each hypothesis to its reference."""
    guess = _sequences(np, to_host(Hyps), Hyps_lod, HypsLength, time_major=False)
    truth = _sequences(np, to_host(Refs), Refs_lod, RefsLength, time_major=False)
    if len(guess.lengths) != len(truth.lengths):
        raise InvalidArgument(
            f"edit_distance has {len(guess.lengths)} hypotheses for {len(truth.lengths)} references"
        )
    found = _distances(guess, truth).astype(np.float32)
    if normalized:
        if np.any(truth.lengths == 0):
            raise InvalidArgument("edit_distance cannot be normalised by an empty reference")
        found = found / truth.lengths
    count = xp.asarray([len(found)], dtype=np.int64)
    return xp.asarray(found.astype(np.float32).reshape(-1, 1)), count


def _distances(guess: _Batch, truth: _Batch) -> Array:
    """One row of the table at a time, over all pairs; the running minimum does the insertions."""
    n = len(guess.lengths)
    hyps, refs = (b.values.reshape(n, -1) for b in (guess, truth))
    columns = np.arange(refs.shape[1] + 1)
    row = np.broadcast_to(columns, (n, len(columns))).copy()
    found = truth.lengths.copy()
    for i in range(hyps.shape[1]):
        new = np.empty_like(row)
        new[:, 0] = i + 1
        changed = row[:, :-1] + (refs != hyps[:, i : i + 1])
        new[:, 1:] = np.minimum(changed, row[:, 1:] + 1)
        row = np.minimum.accumulate(new - columns, axis=1) + columns
        ended = guess.lengths == i + 1
        found[ended] = row[ended, truth.lengths[ended]]
    return found
