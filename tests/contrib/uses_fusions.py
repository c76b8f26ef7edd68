"""Operators that 1.8.5's passes for inference make, as programs saved after them have them."""

import numpy as np

from tests.contrib.uses_quantization import append
from tests.detection.uses import data, draw, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well
LENGTHS = [[3, 1, 4]]


def use(function):
    USES[function.__name__] = function
    return function


def _hidden(f, type, inputs, slots, shown, **attrs):
    """The first `shown` outputs of an operator that has more."""
    return append(f, type, inputs, slots, **attrs)[:shown]


_LSTM = "Hidden Cell XX BatchedInput BatchedHidden BatchedCell ReorderedH0 ReorderedC0 CheckedCell"


def _lstm(f, peepholes, first, **attrs):
    feed = feeds()
    given = {
        "X": data(f, feed, "x", maps("x", 8, 5), LENGTHS),
        "WeightX": data(f, feed, "wx", maps("wx", 5, 16)),
        "WeightH": data(f, feed, "wh", maps("wh", 4, 16)),
        "Bias": data(f, feed, "b", maps("b", 1, 28 if peepholes else 16)),
    }
    if first:
        given["H0"] = data(f, feed, "h0", maps("h0", 3, 4))
        given["C0"] = data(f, feed, "c0", maps("c0", 3, 4))
    out = []
    for use_seq in (True, False):
        attrs.update(use_peepholes=peepholes, use_seq=use_seq)
        out += _hidden(f, "fusion_lstm", given, _LSTM, 2, **attrs)
    return out, feed, []


@use
def fusion_lstm(f):
    return _lstm(f, False, False)


@use
def fusion_lstm_with_peepholes(f):
    return _lstm(f, True, True)


@use
def fusion_lstm_backwards(f):
    return _lstm(f, False, True, is_reverse=True, candidate_activation="relu")


def _gru(f, first, bias, **attrs):
    feed = feeds()
    given = {
        "X": data(f, feed, "x", maps("x", 8, 5), LENGTHS),
        "WeightX": data(f, feed, "wx", maps("wx", 5, 12)),
        "WeightH": data(f, feed, "wh", maps("wh", 4, 12)),
    }
    if first:
        given["H0"] = data(f, feed, "h0", maps("h0", 3, 4))
    if bias:
        given["Bias"] = data(f, feed, "b", maps("b", 1, 12))
    out = []
    slots = "Hidden XX ReorderedH0 BatchedInput BatchedOut"
    for use_seq in (True, False):
        out += _hidden(f, "fusion_gru", given, slots, 1, use_seq=use_seq, **attrs)
    return out, feed, []


@use
def fusion_gru(f):
    return _gru(f, False, True)


@use
def fusion_gru_backwards(f):
    return _gru(f, True, False, is_reverse=True, activation="relu")


@use
def fusion_gru_with_states(f):
    return _gru(f, True, True)


@use
def fused_embedding_fc_lstm(f):
    feed = feeds()
    given = {
        "Ids": data(f, feed, "i", draw("i").randint(0, 10, (8, 1)).astype("int64"), LENGTHS),
        "Embeddings": data(f, feed, "e", maps("e", 10, 16)),
        "WeightH": data(f, feed, "wh", maps("wh", 4, 16)),
        "Bias": data(f, feed, "b", maps("b", 1, 16)),
    }
    slots = _LSTM.replace(" CheckedCell", "")
    type = "fused_embedding_fc_lstm"
    out = _hidden(f, type, given, slots, 2, use_peepholes=False)
    out += _hidden(f, type, given, slots, 2, use_peepholes=False, is_reverse=True)
    given["H0"] = data(f, feed, "h0", maps("h0", 3, 4))
    given["C0"] = data(f, feed, "c0", maps("c0", 3, 4))
    given["Bias"] = data(f, feed, "b7", maps("b7", 1, 28))
    return out + _hidden(f, type, given, slots, 2, use_peepholes=True), feed, []


@use
def attention_lstm(f):
    feed = feeds()
    given = {
        "X": data(f, feed, "x", maps("x", 8, 5), LENGTHS),
        "C0": data(f, feed, "c0", maps("c0", 3, 4)),
        "AttentionWeight": data(f, feed, "aw", maps("aw", 9, 1)),
        "LSTMWeight": data(f, feed, "lw", maps("lw", 9, 16)),
        "LSTMBias": data(f, feed, "lb", maps("lb", 1, 16)),
    }
    slots = "Hidden Cell AttentionedX AttentionFCOut LSTMX LSTMOUT"
    out = _hidden(f, "attention_lstm", given, slots, 2)
    given["H0"] = data(f, feed, "h0", maps("h0", 3, 4))
    given["AttentionBias"] = data(f, feed, "ab", maps("ab", 1, 1))
    given["AttentionScalar"] = data(f, feed, "as", maps("as", 1, 1))
    given["AttentionScalarBias"] = data(f, feed, "asb", maps("asb", 1, 1))
    return out + _hidden(f, "attention_lstm", given, slots, 2), feed, []


@use
def fusion_repeated_fc_relu(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 6, 5))
    sizes = [5, 7, 3, 4]
    weights = [data(f, feed, f"w{i}", maps(f"w{i}", *sizes[i : i + 2])) for i in range(3)]
    biases = [data(f, feed, f"b{i}", maps(f"b{i}", 1, sizes[i + 1])) for i in range(3)]
    helper = f.layer_helper.LayerHelper("fusion_repeated_fc_relu")
    made = [helper.create_variable_for_type_inference("float32") for _ in range(3)]
    helper.append_op(
        type="fusion_repeated_fc_relu",
        inputs={"X": x, "W": weights, "Bias": biases},
        outputs={"Out": made[0], "ReluOut": made[1:]},
    )
    return made[:1], feed, []


@use
def fusion_squared_mat_sub(f):
    feed = feeds()
    given = {"X": data(f, feed, "x", maps("x", 6, 5)), "Y": data(f, feed, "y", maps("y", 5, 4))}
    slots = "Out SquaredX SquaredY SquaredXY"
    return _hidden(f, "fusion_squared_mat_sub", given, slots, 1, scalar=0.5), feed, []


@use
def fusion_seqconv_eltadd_relu(f):
    feed = feeds()
    given = {
        "X": data(f, feed, "x", maps("x", 8, 5), LENGTHS),
        "Filter": data(f, feed, "w", maps("w", 15, 6)),
        "Bias": data(f, feed, "b", maps("b", 1, 6)),
    }
    attrs = {"contextLength": 3, "contextStart": -1, "contextStride": 1}
    return _hidden(f, "fusion_seqconv_eltadd_relu", given, "Out ColMat", 1, **attrs), feed, []


@use
def fusion_seqexpand_concat_fc(f):
    feed = feeds()
    parts = [data(f, feed, "x", maps("x", 8, 5), LENGTHS)]
    parts += [data(f, feed, n, maps(n, 3, k), [[1, 1, 1]]) for n, k in (("y", 2), ("z", 4))]
    given = {"X": parts, "FCWeight": data(f, feed, "w", maps("w", 11, 6))}
    type, out = "fusion_seqexpand_concat_fc", []
    for act in ("identity", "relu", "tanh"):
        out += _hidden(f, type, given, "Out FCOut", 1, fc_activation=act)
        given["FCBias"] = data(f, feed, "b" + act, maps("b", 1, 6))
    return out, feed, []


@use
def fusion_seqpool_concat(f):
    feed = feeds()
    parts = [data(f, feed, n, maps(n, 8, 5), [s]) for n, s in (("x", [3, 1, 4]), ("y", [2, 5, 1]))]
    out, given = [], {"X": parts}
    for kind in ("SUM", "AVERAGE", "SQRT"):
        out += append(f, "fusion_seqpool_concat", given, "Out", pooltype=kind, axis=1)
    return out, feed, []


@use
def fusion_seqpool_cvm_concat(f):
    feed = feeds()
    parts = [
        data(f, feed, n, np.abs(maps(n, 8, 5)), [s])
        for n, s in (("x", [3, 1, 4]), ("y", [2, 5, 1]))
    ]
    out, given = [], {"X": parts, "CVM": data(f, feed, "c", maps("c", 3, 2))}
    for kind in ("SUM", "AVERAGE", "SQRT"):
        type = "fusion_seqpool_cvm_concat"
        out += append(f, type, given, "Out", pooltype=kind, axis=1, use_cvm=True)
    return out, feed, []


@use
def fused_embedding_seq_pool(f):
    feed = feeds()
    ids = data(f, feed, "i", draw("i").randint(0, 10, (8, 1)).astype("int64"), LENGTHS)
    table = f.layers.create_parameter([10, 4], "float32", name="table")
    type, given = "fused_embedding_seq_pool", {"W": table, "Ids": ids}
    out = append(f, type, given, "Out", combiner="sum", is_sparse=False)
    return out, feed, [out[0], table]
