"""Sequences rearranged: expanded, padded, joined, cut, reversed.

Row indices are computed on the host from the LoD; the rows are moved in one step each.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType
from bireme.ir.names import grad_name

from .segments import (
    from_lengths,
    offsets_of,
    owners,
    pad,
    padded_index,
    picked,
    ranges,
    segment_sum,
    unpad,
)
from .shapes import flat_gradients, same_as
from .table import GradOp, Infer, OpSpec, op


# -- expanding --------------------------------------------------------------------------------
def _expanded(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    ctx.set("Out", (-1, *x.shape[1:]), like=x, lod_level=x.lod_level)
    if ctx.op.type == "sequence_expand_as":
        ctx.set("Out", lod_level=y.lod_level)


def _repeats(x: Array, x_lod: Any, y_lod: Any, ref_level: int) -> Array:
    """Which sequence (or row) of X each sequence of the result is."""
    counts = np.diff(offsets_of(y_lod, "sequence_expand", ref_level))
    have = len(x_lod[0]) - 1 if x_lod else len(x)
    if len(counts) != have:
        raise InvalidArgument(
            f"sequence_expand has {have} sequences in X but {len(counts)} in Y at that level"
        )
    return np.repeat(np.arange(have), counts)


@op("sequence_expand", infer=_expanded, grad=GradOp(uses=("X", "Y"), wrt=("X",)))
def sequence_expand(xp: Array, X: Array, X_lod: Any, Y_lod: Any, ref_level: int) -> WithLoD:
    """Each sequence (or row) of X as often as Y's sequence at `ref_level` is long."""
    return WithLoD(*picked(xp, X, X_lod[:1], _repeats(X, X_lod, Y_lod, ref_level)))


@op("sequence_expand_grad", infer=flat_gradients)
def sequence_expand_grad(
    xp: Array, X: Array, X_lod: Any, Y_lod: Any, dOut: Array, ref_level: int
) -> Array:
    chosen = _repeats(X, X_lod, Y_lod, ref_level)
    if not X_lod:
        return segment_sum(xp, dOut, from_lengths(np.bincount(chosen, minlength=len(X))))
    offsets = X_lod[0]
    rows = ranges(offsets[:-1][chosen], np.diff(offsets)[chosen])
    grad = xp.zeros_like(X)
    xp.add.at(grad, xp.asarray(rows), dOut)
    return grad


@op("sequence_expand_as", infer=_expanded, grad=GradOp(uses=("X", "Y"), wrt=("X",)))
def sequence_expand_as(xp: Array, X: Array, Y_lod: Any) -> WithLoD:
    """Each row of X as often as Y's sequence is long."""
    offsets = offsets_of(Y_lod, "sequence_expand_as", 0)
    if len(X) != len(offsets) - 1:
        raise InvalidArgument(
            f"sequence_expand_as has {len(X)} rows in X but {len(offsets) - 1} sequences in Y"
        )
    return WithLoD(X[xp.asarray(owners(offsets))], (offsets,))


@op("sequence_expand_as_grad")
def sequence_expand_as_grad(xp: Array, X: Array, Y_lod: Any, dOut: Array) -> Array:
    return segment_sum(xp, dOut, offsets_of(Y_lod, "sequence_expand_as_grad", 0))


# -- padding ----------------------------------------------------------------------------------
def _padded_shape(ctx: Infer) -> None:
    x, width = ctx.x("X"), ctx.attr("padded_length")
    ctx.set("Out", (-1, 1 if width == -1 else width, *x.shape[1:]), like=x, lod_level=0)
    ctx.set("Length", (-1,), VarType.INT64, lod_level=0)


def _width(offsets: Array, padded_length: int) -> int:
    longest = int(np.diff(offsets).max(initial=0))
    if padded_length == -1:
        return longest
    if padded_length < longest:
        raise InvalidArgument(
            f"sequence_pad pads to {padded_length}, but a sequence has {longest} steps"
        )
    return padded_length


@op(
    "sequence_pad",
    infer=_padded_shape,
    grad=GradOp(uses=("X",), wrt=("X",), of=("Out",)),
    returns="Out Length",
    lod=None,
)
def sequence_pad(
    xp: Array, X: Array, X_lod: Any, PadValue: Array, padded_length: int
) -> tuple[Array, Array]:
    """(sequence, step, ...), filled up with PadValue, and the lengths."""
    offsets = offsets_of(X_lod, "sequence_pad", 0)
    padded = padded_index(offsets, _width(offsets, padded_length))
    fill = PadValue if PadValue.size > 1 else PadValue.reshape(-1)[0]
    return pad(xp, X, padded, fill), xp.asarray(np.diff(offsets))


@op("sequence_pad_grad")
def sequence_pad_grad(xp: Array, X: Array, X_lod: Any, dOut: Array) -> Array:
    padded = padded_index(offsets_of(X_lod, "sequence_pad_grad", 0), dOut.shape[1])
    return unpad(xp, dOut, padded, len(X))


def _unpadded_shape(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, *(x.shape[2:] or (1,))), like=x, lod_level=1)


@op(
    "sequence_unpad",
    infer=_unpadded_shape,
    grad=GradOp(uses=("X",), wrt=("X",), of=("Out",)),
)
def sequence_unpad(xp: Array, X: Array, X_lod: Any, Length: Array) -> WithLoD:
    """The first `Length` steps of each row, as sequences."""
    lengths = to_host(Length).reshape(-1).astype(np.int64)
    rows = ranges(np.arange(len(X)) * X.shape[1], lengths)
    flat = X.reshape(-1, *(X.shape[2:] or (1,)))
    return WithLoD(flat[xp.asarray(rows)], (from_lengths(lengths),))


@op("sequence_unpad_grad", lod=None)
def sequence_unpad_grad(xp: Array, X: Array, dOut: Array, dOut_lod: Any) -> Array:
    lengths = np.diff(offsets_of(dOut_lod, "sequence_unpad_grad", 0))
    rows = ranges(np.arange(len(X)) * X.shape[1], lengths)
    grad = xp.zeros_like(X)
    grad.reshape(-1, *(X.shape[2:] or (1,)))[xp.asarray(rows)] = dOut
    return grad


# -- joining and cutting ----------------------------------------------------------------------
def _joined_rows(lods: list[Any]) -> tuple[list[Array], Array]:
    """For each input the rows of the result that are its own, and the offsets of the result."""
    lengths = np.stack([np.diff(offsets_of(lod, "sequence_concat", 0)) for lod in lods], axis=1)
    starts = from_lengths(lengths.reshape(-1))[:-1].reshape(lengths.shape)
    rows = [ranges(starts[:, i], lengths[:, i]) for i in range(lengths.shape[1])]
    return rows, from_lengths(lengths.sum(axis=1))


def _concatenated(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, *x.shape[1:]), like=x, lod_level=max(x.lod_level, 1))


@op("sequence_concat", infer=_concatenated, grad=GradOp(uses=("X",)))
def sequence_concat(xp: Array, X: list[Array], X_lod: list[Any]) -> WithLoD:
    """The first sequences of all inputs end to end, then the second ones, and so on."""
    rows, offsets = _joined_rows(X_lod)
    out = xp.empty((int(offsets[-1]), *X[0].shape[1:]), dtype=X[0].dtype)
    for part, own in zip(X, rows, strict=True):
        out[xp.asarray(own)] = part
    return WithLoD(out, (offsets,))


@op("sequence_concat_grad", infer=flat_gradients)
def sequence_concat_grad(xp: Array, X: list[Array], X_lod: list[Any], dOut: Array) -> list[Any]:
    rows, _ = _joined_rows(X_lod)
    grads = (dOut[xp.asarray(own)] for own in rows)
    return [WithLoD(grad, lod) for grad, lod in zip(grads, X_lod, strict=True)]


def _reshaped(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, ctx.attr("new_dim")), like=x, lod_level=max(x.lod_level, 1))


@op("sequence_reshape", infer=_reshaped, grad=GradOp(uses=("X",)))
def sequence_reshape(xp: Array, X: Array, X_lod: Any, new_dim: int) -> WithLoD:
    """Rows of another width; each sequence keeps its numbers."""
    offsets = offsets_of(X_lod, "sequence_reshape", 0) * X.shape[1]
    if np.any(offsets % new_dim):
        raise InvalidArgument(
            f"sequence_reshape cannot cut rows of {X.shape[1]} into rows of {new_dim}",
            where=f"lengths of the sequences: {np.diff(X_lod[0]).tolist()}",
        )
    return WithLoD(X.reshape(-1, new_dim), (offsets // new_dim,))


@op("sequence_reshape_grad", lod="X")
def sequence_reshape_grad(xp: Array, X: Array, dOut: Array) -> Array:
    return dOut.reshape(X.shape)


def _slice_rows(lod: Any, offset: Array, length: Array) -> tuple[Array, Array]:
    offsets = offsets_of(lod, "sequence_slice", 0)
    begin, count = (to_host(v).reshape(-1).astype(np.int64) for v in (offset, length))
    if np.any(begin < 0) or np.any(begin + count > np.diff(offsets)):
        raise InvalidArgument("sequence_slice reaches beyond the end of a sequence")
    return ranges(offsets[:-1] + begin, count), from_lengths(count)


def _sliced(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, *x.shape[1:]), like=x, lod_level=0)


@op(
    "sequence_slice",
    infer=_sliced,
    grad=GradOp(uses=("X", "Offset", "Length"), wrt=("X",)),
)
def sequence_slice(xp: Array, X: Array, X_lod: Any, Offset: Array, Length: Array) -> WithLoD:
    """`Length` steps of each sequence from its step `Offset`."""
    rows, offsets = _slice_rows(X_lod, Offset, Length)
    return WithLoD(X[xp.asarray(rows)], (offsets,))


@op("sequence_slice_grad", infer=flat_gradients, lod="X")
def sequence_slice_grad(
    xp: Array, X: Array, X_lod: Any, Offset: Array, Length: Array, dOut: Array
) -> Array:
    rows, _ = _slice_rows(X_lod, Offset, Length)
    grad = xp.zeros_like(X)
    grad[xp.asarray(rows)] = dOut
    return grad


def _reverse_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x, y = operator.input("X"), operator.output("Y")
    return [OpSpec("sequence_reverse", {"X": [grad_name(y[0])]}, {"Y": [grad_name(x[0])]}, {})]


@op("sequence_reverse", infer=same_as("X"), grad=_reverse_gradient)
def sequence_reverse(xp: Array, X: Array, X_lod: Any) -> Array:
    """Each sequence from its end to its beginning."""
    offsets = offsets_of(X_lod, "sequence_reverse")
    rows = (offsets[:-1] + offsets[1:] - 1)[owners(offsets)] - np.arange(offsets[-1])
    return X[xp.asarray(rows)]
