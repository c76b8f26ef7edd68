"""One row per sequence, and the softmax over a sequence."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator

from .segments import (
    largest,
    offsets_of,
    owners,
    pad,
    padded_index,
    segment_sum,
)
from .shapes import flat_gradients, same_as
from .table import GradOp, Infer, OpSpec, op


# -- pooling ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _PoolGradient(GradOp):
    """The gradient reads the positions of the maxima, where there are any."""

    def __call__(self, operator: Operator, block: Block) -> list[OpSpec]:
        (spec,) = GradOp.__call__(self, operator, block)
        inputs = dict(spec.inputs)
        if operator.attrs["pooltype"] != "MAX":
            del inputs["MaxIndex"]
        return [spec._replace(inputs=inputs)]


def _pooled(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (-1, *x.shape[1:]), like=x, lod_level=max(x.lod_level - 1, 0))
    if ctx.attr("pooltype") == "MAX":
        ctx.set("MaxIndex", (-1, *x.shape[1:]), lod_level=0)


@op(
    "sequence_pool",
    infer=_pooled,
    grad=_PoolGradient(uses=("X", "MaxIndex"), wrt=("X",), of=("Out",)),
    returns="Out MaxIndex",
)
def sequence_pool(
    xp: Array, X: Array, X_lod: Any, pooltype: str, pad_value: float
) -> tuple[WithLoD, Array]:
    """One row per sequence; an empty sequence gives `pad_value`."""
    offsets = offsets_of(X_lod, "sequence_pool")
    lengths = np.diff(offsets)
    index = None
    if pooltype == "MAX":
        padded = padded_index(offsets)
        places = pad(xp, X, padded, -np.inf)
        index = _positions(xp, places, padded.index)
        out = largest(xp, places)
    elif pooltype in ("FIRST", "LAST"):
        rows = offsets[:-1] if pooltype == "FIRST" else offsets[1:] - 1
        rows = np.where(lengths > 0, rows, 0)
        out = X[xp.asarray(rows)] if len(X) else xp.zeros((len(rows), *X.shape[1:]), X.dtype)
    else:
        out = segment_sum(xp, X, offsets)
        if pooltype != "SUM":
            out *= _weights(xp, pooltype, lengths, X)
    if not lengths.all():
        out[xp.asarray(lengths == 0)] = pad_value
    return WithLoD(out, X_lod[:-1]), index


def _positions(xp: Array, places: Array, index: Array) -> Array:
    """The row of each maximum."""
    if not places.shape[1]:
        return xp.zeros((places.shape[0], *places.shape[2:]), dtype=xp.int32)
    steps = places.argmax(axis=1)
    rows = xp.asarray(index).reshape(index.shape + (1,) * (steps.ndim - 1))
    found = xp.take_along_axis(xp.broadcast_to(rows, places.shape), steps[:, None], axis=1)
    return found[:, 0].astype(xp.int32)


def _weights(xp: Array, pooltype: str, lengths: Array, like: Array) -> Array:
    """What a row weighs in the mean (or the sum over the root of the length) of its sequence."""
    counts = np.maximum(lengths, 1).astype(like.dtype)
    weights = 1 / (counts if pooltype == "AVERAGE" else np.sqrt(counts))
    return xp.asarray(weights.reshape(-1, *[1] * (like.ndim - 1)))


@op("sequence_pool_grad")
def sequence_pool_grad(
    xp: Array, X: Array, X_lod: Any, MaxIndex: Array, dOut: Array, pooltype: str
) -> Array:
    offsets = offsets_of(X_lod, "sequence_pool_grad")
    lengths = np.diff(offsets)
    if pooltype in ("SUM", "AVERAGE", "SQRT"):
        share = dOut if pooltype == "SUM" else dOut * _weights(xp, pooltype, lengths, X)
        return share[xp.asarray(owners(offsets))]
    grad = xp.zeros_like(X)
    filled = np.nonzero(lengths)[0]
    if pooltype == "MAX":
        rows, parts = MaxIndex[xp.asarray(filled)], dOut[xp.asarray(filled)]
        columns = xp.arange(parts[0].size if len(parts) else 0)
        flat = grad.reshape(len(X), -1)
        flat[rows.reshape(len(filled), -1), columns] = parts.reshape(len(filled), -1)
        return grad
    rows = offsets[:-1] if pooltype == "FIRST" else offsets[1:] - 1
    grad[xp.asarray(rows[filled])] = dOut[xp.asarray(filled)]
    return grad


# -- softmax ----------------------------------------------------------------------------------
@op(
    "sequence_softmax",
    infer=same_as("X"),
    grad=GradOp(uses=("X", "Out"), wrt=("X",)),
)
def sequence_softmax(xp: Array, X: Array, X_lod: Any) -> Array:
    """The softmax over each sequence of numbers."""
    offsets = offsets_of(X_lod, "sequence_softmax")
    if X.size != len(X):
        raise InvalidArgument(
            f"sequence_softmax takes one number per row, got rows of shape {list(X.shape[1:])}",
            hint="layers.fc(size=1) makes such rows",
        )
    rows = xp.asarray(owners(offsets))
    top = largest(xp, pad(xp, X, padded_index(offsets), -np.inf))
    out = xp.exp(X - top[rows])
    out /= segment_sum(xp, out, offsets)[rows]
    return out


@op("sequence_softmax_grad", infer=flat_gradients)
def sequence_softmax_grad(xp: Array, Out: Array, Out_lod: Any, dOut: Array) -> Array:
    offsets = offsets_of(Out_lod, "sequence_softmax_grad")
    inner = segment_sum(xp, Out * dOut, offsets)[xp.asarray(owners(offsets))]
    return (dOut - inner) * Out
