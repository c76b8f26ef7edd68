"""Operators that passes of 1.8.5 make of several, for inference: recurrences with their projection,
pooled or expanded sequences side by side, fully connected layers one after the other.

Outputs that only their kernels of 1.8.5 used for themselves are not computed.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows, WithLoD
from bireme.ir import VarType

from .context import sequence_conv
from .gru import gru
from .packing import activation
from .rnn import lstm
from .segments import offsets_of, owners, segment_sum
from .sequence_pool import sequence_pool
from .sparse import lookup_table, lookup_table_grad
from .table import GradOp, Infer, no_gradient, op


# -- recurrences -------------------------------------------------------------------------------
def _recurrent_rule(ctx: Infer) -> None:
    x = ctx.x("Ids" if ctx.op.type == "fused_embedding_fc_lstm" else "X")
    for slot in ("Hidden", "Cell"):
        ctx.set(slot, (x.shape[0], ctx.x("WeightH").shape[0]), ctx.x("WeightH").dtype, like=x)


@op("fusion_lstm", infer=_recurrent_rule, grad=no_gradient, returns="Hidden Cell", lod="X")
def fusion_lstm(
    xp: Array,
    X: Array,
    X_lod: Any,
    WeightX: Array,
    WeightH: Array,
    Bias: Array,
    H0: Array,
    C0: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
) -> tuple[Any, ...]:
    """An LSTM with the projection of its input."""
    names = gate_activation, cell_activation, candidate_activation
    x = X @ WeightX
    return lstm(xp, x, X_lod, H0, C0, WeightH, Bias, use_peepholes, is_reverse, *names)[:2]


@op(
    "fused_embedding_fc_lstm",
    infer=_recurrent_rule,
    grad=no_gradient,
    returns="Hidden Cell",
    lod="Ids",
)
def fused_embedding_fc_lstm(
    xp: Array,
    Ids: Array,
    Ids_lod: Any,
    Embeddings: Array,
    WeightH: Array,
    Bias: Array,
    H0: Array,
    C0: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
) -> tuple[Any, ...]:
    """An LSTM over rows of a table that holds projections, with their bias."""
    names = gate_activation, cell_activation, candidate_activation
    x = lookup_table(xp, Embeddings, Ids.reshape(-1, 1), -1)
    bias = Bias.copy()
    bias.reshape(-1)[: x.shape[1]] = 0
    return lstm(xp, x, Ids_lod, H0, C0, WeightH, bias, use_peepholes, is_reverse, *names)[:2]


@op("fusion_gru", infer=_recurrent_rule, grad=no_gradient, returns="Hidden", lod="X")
def fusion_gru(
    xp: Array,
    X: Array,
    X_lod: Any,
    H0: Array,
    WeightX: Array,
    WeightH: Array,
    Bias: Array,
    activation_: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> Array:
    """A GRU with the projection of its input."""
    kind = activation_, gate_activation, is_reverse, origin_mode
    return gru(xp, X @ WeightX, X_lod, H0, WeightH, Bias, *kind)[0]


def _attention_rule(ctx: Infer) -> None:
    x, c = ctx.x("X"), ctx.x("C0")
    for slot in ("Hidden", "Cell"):
        ctx.set(slot, (x.shape[0], c.shape[1]), like=x)


@op("attention_lstm", infer=_attention_rule, grad=no_gradient, returns="Hidden Cell", lod="X")
def attention_lstm(
    xp: Array,
    X: Array,
    X_lod: Any,
    C0: Array,
    H0: Array,
    AttentionWeight: Array,
    AttentionBias: Array,
    AttentionScalar: Array,
    AttentionScalarBias: Array,
    LSTMWeight: Array,
    LSTMBias: Array,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
) -> tuple[Array, Array]:
    """An LSTM whose every step reads the whole sequence, weighed by its cell."""
    offsets, (width, size) = offsets_of(X_lod, "attention_lstm"), (C0.shape[1], X.shape[1])
    names = (gate_activation, cell_activation, candidate_activation)
    gate, cell_act, new = (activation(name) for name in names)
    hidden = xp.empty((len(X), width), dtype=X.dtype)
    cells = xp.empty_like(hidden)
    said = X @ AttentionWeight[:size]
    said = said if AttentionBias is None else said + AttentionBias.reshape(-1)
    for n, (start, end) in enumerate(pairwise(offsets.tolist())):
        h, c = None if H0 is None else H0[n], C0[n]
        for t in range(start, end):
            scores = xp.maximum(said[start:end, 0] + c @ AttentionWeight[size:, 0], 0)
            if AttentionScalar is not None:
                scores = scores * AttentionScalar.reshape(-1)
                if AttentionScalarBias is not None:
                    scores = xp.maximum(scores + AttentionScalarBias.reshape(-1), 0)
            weights = xp.exp(scores - scores.max())
            read = (weights / weights.sum()) @ X[start:end]
            gates = read @ LSTMWeight[width:] + LSTMBias.reshape(-1)
            gates = gates if h is None else gates + h @ LSTMWeight[:width]
            gate.value(xp, gates[: 3 * width], gates[: 3 * width])
            new.value(xp, gates[3 * width :], gates[3 * width :])
            forget, enter, leave, candidate = gates.reshape(4, width)
            c = forget * c + enter * candidate
            h = xp.empty_like(c)
            cell_act.value(xp, c, h)
            h *= leave
            hidden[t], cells[t] = h, c
    return hidden, cells


# -- sequences side by side --------------------------------------------------------------------
def _pooled_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    ctx.set("Out", (-1, sum(x.shape[1] for x in xs)), like=xs[0], lod_level=1)


def _pooled(xp: Array, xs: list[Array], lods: Any, pooltype: str) -> list[Array]:
    return [
        sequence_pool(xp, x, lod, pooltype, 0.0)[0].array for x, lod in zip(xs, lods, strict=True)
    ]


@op("fusion_seqpool_concat", infer=_pooled_rule, grad=no_gradient, lod=None)
def fusion_seqpool_concat(xp: Array, X: list[Array], X_lod: Any, pooltype: str) -> WithLoD:
    """Sequences pooled one by one, side by side; each row is a sequence of its own."""
    return _beside(xp, _pooled(xp, X, X_lod, pooltype))


def _beside(xp: Array, parts: list[Array]) -> WithLoD:
    return WithLoD(xp.concatenate(parts, axis=1), (np.arange(len(parts[0]) + 1),))


@op("fusion_seqpool_cvm_concat", infer=_pooled_rule, grad=no_gradient, lod=None)
def fusion_seqpool_cvm_concat(xp: Array, X: list[Array], X_lod: Any, pooltype: str) -> WithLoD:
    """The same, with show and click of each in logarithms."""
    parts = _pooled(xp, X, X_lod, pooltype)
    for part in parts:
        part[:, :2] = xp.log(part[:, :2] + 1)
        part[:, 1] -= part[:, 0]
    return _beside(xp, parts)


def _expanded_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (x.shape[0], ctx.x("FCWeight").shape[1]), like=x)


@op("fusion_seqexpand_concat_fc", infer=_expanded_rule, grad=no_gradient, lod="X")
def fusion_seqexpand_concat_fc(
    xp: Array,
    X: list[Array],
    X_lod: Any,
    FCWeight: Array,
    FCBias: Array,
    fc_activation: str,
) -> Array:
    """A fully connected layer over each row of a sequence, with one row of every other input."""
    rows = xp.asarray(owners(offsets_of(X_lod[0], "fusion_seqexpand_concat_fc")))
    out = xp.concatenate([X[0], *(x[rows] for x in X[1:])], axis=1) @ FCWeight
    out = out if FCBias is None else out + FCBias.reshape(-1)
    activation(fc_activation).value(xp, out, out)
    return out


def _convolved_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (x.shape[0], ctx.x("Filter").shape[1]), like=x)


@op("fusion_seqconv_eltadd_relu", infer=_convolved_rule, grad=no_gradient, lod="X")
def fusion_seqconv_eltadd_relu(
    xp: Array,
    X: Array,
    X_lod: Any,
    Filter: Array,
    Bias: Array,
    contextLength: int,
    contextStart: int,
    contextStride: int,
) -> Array:
    window = contextStart, contextLength, contextStride, False
    return xp.maximum(sequence_conv(xp, X, X_lod, Filter, *window) + Bias.reshape(-1), 0)


# -- dense -------------------------------------------------------------------------------------
def _repeated_rule(ctx: Infer) -> None:
    x, last = ctx.x("X"), ctx.inputs("W")[-1]
    ctx.set("Out", (x.shape[0], last.shape[1]), like=x)


@op("fusion_repeated_fc_relu", infer=_repeated_rule, grad=no_gradient, returns="Out")
def fusion_repeated_fc_relu(xp: Array, X: Array, W: list[Array], Bias: list[Array]) -> Array:
    out = X
    for weight, bias in zip(W, Bias, strict=True):
        out = xp.maximum(out @ weight + bias.reshape(-1), 0)
    return out


def _product_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    ctx.set("Out", (x.shape[0], y.shape[1]), like=x)


@op("fusion_squared_mat_sub", infer=_product_rule, grad=no_gradient, returns="Out")
def fusion_squared_mat_sub(xp: Array, X: Array, Y: Array, scalar: float) -> Array:
    """((X Y)^2 - X^2 Y^2), times a number: the interactions of a factorisation machine."""
    return X.dtype.type(scalar) * ((X @ Y) ** 2 - (X * X) @ (Y * Y))


# -- embeddings of a sequence, summed ----------------------------------------------------------
def _summed_rule(ctx: Infer) -> None:
    table = ctx.x("W")
    ctx.set("Out", (-1, table.shape[1]), table.dtype, lod_level=0)


def _summed_gradient(ctx: Infer) -> None:
    sparse = ctx.op.attrs.get("is_sparse")
    ctx.set("W@GRAD", like=ctx.x("W"), type=VarType.SELECTED_ROWS if sparse else None)


@op(
    "fused_embedding_seq_pool",
    infer=_summed_rule,
    grad=GradOp(uses=("W", "Ids"), wrt=("W",)),
    lod=None,
)
def fused_embedding_seq_pool(
    xp: Array, W: Array, Ids: Array, Ids_lod: Any, padding_idx: int
) -> Array:
    """The sum of the table's rows of each sequence of ids."""
    rows = lookup_table(xp, W, Ids.reshape(-1, 1), padding_idx)
    return segment_sum(xp, rows, offsets_of(Ids_lod, "fused_embedding_seq_pool"))


@op("fused_embedding_seq_pool_grad", infer=_summed_gradient, lod=None)
def fused_embedding_seq_pool_grad(
    xp: Array,
    W: Array,
    Ids: Array,
    Ids_lod: Any,
    dOut: Array,
    is_sparse: bool,
    padding_idx: int,
) -> Array | SelectedRows:
    rows = xp.asarray(owners(offsets_of(Ids_lod, "fused_embedding_seq_pool_grad")))
    return lookup_table_grad(xp, W, Ids.reshape(-1, 1), dOut[rows], is_sparse, padding_idx)
