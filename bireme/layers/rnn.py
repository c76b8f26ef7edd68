"""Recurrent layers: LSTM and GRU over sequences, their single steps, and beam search."""

from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType

from .cells import GRUCell, LSTMCell, RNNCell, rnn
from .helper import LayerHelper
from .nn import fc
from .single import append, checked
from .tensor import concat

__all__ = [
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "beam_search",
    "beam_search_decode",
    "dynamic_gru",
    "dynamic_lstm",
    "dynamic_lstmp",
    "gather_tree",
    "gru_unit",
    "lstm",
    "lstm_unit",
    "rnn",
]


def _temporaries(helper: LayerHelper, count: int, dtype: Any) -> list[Variable]:
    return [helper.create_variable_for_type_inference(dtype) for _ in range(count)]


def _initial(h_0: Variable | None, c_0: Variable | None) -> dict[str, Any]:
    if (h_0 is None) != (c_0 is None):
        raise InvalidArgument("give both h_0 and c_0, or neither")
    return {} if h_0 is None else {"H0": h_0, "C0": c_0}


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """An LSTM over sequences of projected inputs, `size` = 4 * width; returns (hidden, cell)."""
    checked(input, "dynamic_lstm", "input")
    helper = LayerHelper("lstm", **locals())
    width = size // 4
    weight = helper.create_parameter(helper.param_attr, [width, 4 * width], dtype)
    bias_size = [1, (7 if use_peepholes else 4) * width]
    bias = helper.create_parameter(helper.bias_attr, bias_size, dtype, is_bias=True)
    hidden, cell, gate, cell_act = _temporaries(helper, 4, dtype)
    helper.append_op(
        type="lstm",
        inputs={"Input": input, "Weight": weight, "Bias": bias, **_initial(h_0, c_0)},
        outputs={"Hidden": hidden, "Cell": cell, "BatchGate": gate, "BatchCellPreAct": cell_act},
        attrs={
            "use_peepholes": use_peepholes,
            "is_reverse": is_reverse,
            "gate_activation": gate_activation,
            "cell_activation": cell_activation,
            "candidate_activation": candidate_activation,
        },
    )
    return hidden, cell


def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """An LSTM whose output is projected to `proj_size`; returns (projection, cell)."""
    checked(input, "dynamic_lstmp", "input")
    helper = LayerHelper("lstmp", **locals())
    width = size // 4
    weight = helper.create_parameter(helper.param_attr, [proj_size, 4 * width], dtype)
    narrow = helper.create_parameter(helper.param_attr, [width, proj_size], dtype)
    bias_size = [1, (7 if use_peepholes else 4) * width]
    bias = helper.create_parameter(helper.bias_attr, bias_size, dtype, is_bias=True)
    out, cell, _, hidden, gate, cell_act = _temporaries(helper, 6, dtype)
    helper.append_op(
        type="lstmp",
        inputs={
            "Input": input,
            "Weight": weight,
            "ProjWeight": narrow,
            "Bias": bias,
            **_initial(h_0, c_0),
        },
        outputs={
            "Projection": out,
            "Cell": cell,
            "BatchHidden": hidden,
            "BatchGate": gate,
            "BatchCellPreAct": cell_act,
        },
        attrs={
            "use_peepholes": use_peepholes,
            "cell_clip": cell_clip or 0.0,
            "proj_clip": proj_clip or 0.0,
            "is_reverse": is_reverse,
            "gate_activation": gate_activation,
            "cell_activation": cell_activation,
            "candidate_activation": candidate_activation,
            "proj_activation": proj_activation,
        },
    )
    return out, cell


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """A GRU of width `size` over sequences of inputs projected to 3 * size."""
    checked(input, "dynamic_gru", "input")
    helper = LayerHelper("gru", **locals())
    dtype = helper.input_dtype()
    weight = helper.create_parameter(helper.param_attr, [size, 3 * size], dtype)
    bias = helper.create_parameter(helper.bias_attr, [1, 3 * size], dtype, is_bias=True)
    inputs = {"Input": input, "Weight": weight, "Bias": bias}
    if h_0 is not None:
        inputs["H0"] = h_0
    hidden, gate, kept, batch = _temporaries(helper, 4, dtype)
    helper.append_op(
        type="gru",
        inputs=inputs,
        outputs={
            "Hidden": hidden,
            "BatchGate": gate,
            "BatchResetHiddenPrev": kept,
            "BatchHidden": batch,
        },
        attrs={
            "is_reverse": is_reverse,
            "gate_activation": gate_activation,
            "activation": candidate_activation,
            "origin_mode": origin_mode,
        },
    )
    return hidden


_NUMBERS = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """One step of a GRU, `size` = 3 * width; returns (hidden, reset hidden, gates)."""
    checked(input, "gru_unit", "input")
    helper = LayerHelper("gru_unit", **locals())
    dtype = helper.input_dtype()
    width = size // 3
    weight = helper.create_parameter(helper.param_attr, [width, 3 * width], dtype)
    gate, kept, new = _temporaries(helper, 3, dtype)
    inputs = {"Input": input, "HiddenPrev": hidden, "Weight": weight}
    if helper.bias_attr:
        bias = helper.create_parameter(helper.bias_attr, [1, 3 * width], dtype, is_bias=True)
        inputs["Bias"] = bias
    helper.append_op(
        type="gru_unit",
        inputs=inputs,
        outputs={"Gate": gate, "ResetHiddenPrev": kept, "Hidden": new},
        attrs={
            "activation": _NUMBERS[activation],
            "gate_activation": _NUMBERS[gate_activation],
            "origin_mode": origin_mode,
        },
    )
    return new, kept, gate


def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """One step of an LSTM; returns (hidden, cell)."""
    for var, what in ((x_t, "x_t"), (hidden_t_prev, "hidden_t_prev"), (cell_t_prev, "cell_t_prev")):
        if len(checked(var, "lstm_unit", what).shape) != 2:
            raise InvalidArgument(f"lstm_unit: {what} must have two dimensions")
    helper = LayerHelper("lstm_unit", name=name)
    joined = concat(input=[x_t, hidden_t_prev], axis=1)
    size = 4 * cell_t_prev.shape[1]
    gates = fc(input=joined, size=size, param_attr=param_attr, bias_attr=bias_attr)
    cell, hidden = _temporaries(helper, 2, x_t.dtype)
    helper.append_op(
        type="lstm_unit",
        inputs={"X": gates, "C_prev": cell_t_prev},
        outputs={"C": cell, "H": hidden},
        attrs={"forget_bias": forget_bias},
    )
    return hidden, cell


def lstm(
    input: Variable,
    init_h: Variable,
    init_c: Variable,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[Variable, Variable, Variable]:
    """Layers of LSTM over (step, batch, size); returns (output, last hidden, last cell)."""
    helper = LayerHelper("cudnn_lstm", **locals())
    checked(input, "lstm", "input")
    sides = 2 if is_bidirec else 1
    size = 0
    for layer in range(num_layers):
        width = input.shape[-1] if layer == 0 else hidden_size * sides
        size += sides * 4 * hidden_size * (width + hidden_size + 2)
    weight = helper.create_parameter(
        helper.param_attr, [size], input.dtype, default_initializer=default_initializer
    )
    out, last_h, last_c = _temporaries(helper, 3, input.dtype)
    cache = helper.create_variable(persistable=True, type=VarType.RAW, stop_gradient=True)
    helper.append_op(
        type="cudnn_lstm",
        inputs={"Input": input, "InitH": init_h, "InitC": init_c, "W": weight, "Cache": cache},
        outputs={"Out": out, "last_h": last_h, "last_c": last_c},
        attrs={
            "max_len": max_len,
            "is_bidirec": is_bidirec,
            "input_size": input.shape[-1],
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "is_test": is_test,
            "dropout_prob": dropout_prob,
            "seed": seed,
        },
    )
    return out, last_h, last_c


# -- beam search ------------------------------------------------------------------------------
def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> tuple[Variable, ...]:
    """The best `beam_size` continuations of each source; returns (ids, scores[, parents])."""
    helper = LayerHelper("beam_search", name=name)
    chosen_scores = helper.create_variable_for_type_inference(pre_scores.dtype)
    chosen = helper.create_variable_for_type_inference(pre_ids.dtype)
    parents = helper.create_variable_for_type_inference("int32")
    inputs = {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores}
    if ids is not None:
        inputs["ids"] = ids
    helper.append_op(
        type="beam_search",
        inputs=inputs,
        outputs={
            "selected_ids": chosen,
            "selected_scores": chosen_scores,
            "parent_idx": parents,
        },
        attrs={
            "level": level,
            "beam_size": beam_size,
            "end_id": end_id,
            "is_accumulated": is_accumulated,
        },
    )
    return (chosen, chosen_scores, parents) if return_parent_idx else (chosen, chosen_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """The sentences behind arrays of selected ids and scores: (ids, scores), best first."""
    helper = LayerHelper("beam_search_decode", name=name)
    sentence_ids = helper.create_variable_for_type_inference(ids.dtype)
    sentence_scores = helper.create_variable_for_type_inference(scores.dtype)
    helper.append_op(
        type="beam_search_decode",
        inputs={"Ids": ids, "Scores": scores},
        outputs={"SentenceIds": sentence_ids, "SentenceScores": sentence_scores},
        attrs={"beam_size": beam_size, "end_id": end_id},
    )
    return sentence_ids, sentence_scores


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """Whole beams from (step, batch, beam) of ids and of parents."""
    return append("gather_tree", {"Ids": ids, "Parents": parents}, dtype=ids.dtype)
