"""GRU over sequences, and the single steps of GRU and LSTM.

Gates stand in the order update, reset, candidate. The weight holds two matrices one after the
other: [D, 2D] for the gates, [D, D] for the candidate.
"""

from typing import Any, NamedTuple

from bireme.arrays.namespaces import Array

from .packing import (
    NUMBERED,
    Activation,
    activation,
    initial,
    initial_gradient,
    packed,
    previous,
    sigmoid,
    unpacked,
)
from .segments import lod_of
from .shapes import flat_gradients
from .table import GradOp, Infer, op


def _matrices(weight: Array) -> tuple[Array, Array]:
    """(weights of update and reset, weights of the candidate)."""
    width = weight.shape[0]
    flat = weight.reshape(-1)
    cut = 2 * width * width
    return flat[:cut].reshape(width, 2 * width), flat[cut:].reshape(width, width)


def _step(
    xp: Array,
    gates: Array,
    h: Array,
    weight: Array,
    acts: tuple[Activation, Activation],
    origin: bool,
) -> tuple[Array, Array]:
    """Activate the gates in place; returns (the reset state, the new state)."""
    gate, candidate = acts
    width = h.shape[1]
    of_gates, of_candidate = _matrices(weight)
    both = gates[:, : 2 * width]
    both += h @ of_gates
    both[...] = gate.value(xp, both)
    update, reset, new = (gates[:, k * width : (k + 1) * width] for k in range(3))
    kept = reset * h
    new += kept @ of_candidate
    new[...] = candidate.value(xp, new)
    return kept, (new + update * (h - new) if origin else h + update * (new - h))


class _Inner(NamedTuple):
    """Gradients of what a step computes on its way to the state, where one flows back."""

    gates: Array = None
    kept: Array = None


def _step_gradient(
    xp: Array,
    gates: Array,
    h: Array,
    weight: Array,
    acts: tuple[Activation, Activation],
    origin: bool,
    grad: Array,
    inner: _Inner,
) -> tuple[Array, Array]:
    """(gradient of the gates before activation, gradient of the state before the step)."""
    gate, candidate = acts
    width = h.shape[1]
    of_gates, of_candidate = _matrices(weight)
    update, reset, new = (gates[:, k * width : (k + 1) * width] for k in range(3))
    out = xp.empty_like(gates)
    d_update, d_reset, d_new = (out[:, k * width : (k + 1) * width] for k in range(3))
    share, rest = (1 - update, update) if origin else (update, 1 - update)
    toward = h - new if origin else new - h
    seen = [0, 0, 0] if inner.gates is None else xp.split(inner.gates, 3, axis=1)
    d_new[...] = (grad * share + seen[2]) * candidate.slope(xp, new)
    d_kept = d_new @ of_candidate.T
    if inner.kept is not None:
        d_kept += inner.kept
    d_update[...] = (grad * toward + seen[0]) * gate.slope(xp, update)
    d_reset[...] = (d_kept * h + seen[1]) * gate.slope(xp, reset)
    before = grad * rest + d_kept * reset + out[:, : 2 * width] @ of_gates.T
    return out, before


def _weight_gradient(xp: Array, grad: Array, h: Array, kept: Array, weight: Array) -> Array:
    width = weight.shape[0]
    gates = h.T @ grad[:, : 2 * width]
    candidate = kept.T @ grad[:, 2 * width :]
    return xp.concatenate([gates.reshape(-1), candidate.reshape(-1)]).reshape(weight.shape)


# -- over sequences ---------------------------------------------------------------------------
def _gru_shapes(ctx: Infer) -> None:
    x = ctx.x("Input")
    hidden = (x.shape[0], ctx.x("Weight").shape[0])
    ctx.set("Hidden", hidden, like=x)
    ctx.set("BatchGate", x.shape, x.dtype, lod_level=0)
    ctx.set("BatchResetHiddenPrev", hidden, x.dtype, lod_level=0)
    ctx.set("BatchHidden", hidden, x.dtype, lod_level=0)


@op(
    "gru",
    infer=_gru_shapes,
    grad=GradOp(
        uses=(
            *("Input", "H0", "Weight", "Bias", "BatchGate", "BatchResetHiddenPrev"),
            *("BatchHidden", "Hidden"),
        ),
        wrt=("Input", "H0", "Weight", "Bias"),
        of=("Hidden",),
    ),
    returns="Hidden BatchGate BatchResetHiddenPrev BatchHidden",
    lod="Input",
)
def gru(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    H0: Array,
    Weight: Array,
    Bias: Array,
    activation_: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> tuple[Array, ...]:
    """Gated recurrent units over sequences of projected inputs."""
    run = packed(xp, Input_lod, "gru", reverse=is_reverse)
    width = Weight.shape[0]
    acts = activation(gate_activation), activation(activation_)
    gates = Input[run.rows]
    if Bias is not None:
        gates += Bias.reshape(-1)
    kept = xp.empty((len(gates), width), dtype=Input.dtype)
    hidden = xp.empty_like(kept)
    h = initial(xp, H0, run, width, Input)
    for begin, end in run.bounds:
        part = slice(begin, end)
        kept[part], h = _step(xp, gates[part], h[: end - begin], Weight, acts, origin_mode)
        hidden[part] = h
    return unpacked(xp, hidden, run.rows), gates, kept, hidden


@op("gru_grad", infer=flat_gradients, lod=lod_of("Input@GRAD", "Input"))
def gru_grad(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    H0: Array,
    Weight: Array,
    Bias: Array,
    BatchGate: Array,
    BatchResetHiddenPrev: Array,
    BatchHidden: Array,
    dHidden: Array,
    activation_: str,
    gate_activation: str,
    is_reverse: bool,
    origin_mode: bool,
) -> tuple[Any, ...]:
    run = packed(xp, Input_lod, "gru_grad", reverse=is_reverse)
    width = Weight.shape[0]
    acts = activation(gate_activation), activation(activation_)
    h_before = previous(xp, run, BatchHidden, initial(xp, H0, run, width, BatchHidden))
    flowing = dHidden[run.rows]
    grad = xp.empty_like(BatchGate)
    d_h = xp.zeros((len(run.order), width), dtype=BatchHidden.dtype)
    for begin, end in reversed(run.bounds):
        count, part = end - begin, slice(begin, end)
        total = d_h[:count] + flowing[part]
        found = _step_gradient(
            xp, BatchGate[part], h_before[part], Weight, acts, origin_mode, total, _Inner()
        )
        grad[part], d_h[:count] = found
    return (
        unpacked(xp, grad, run.rows),
        None if H0 is None else initial_gradient(xp, d_h, run.order),
        _weight_gradient(xp, grad, h_before, BatchResetHiddenPrev, Weight),
        None if Bias is None else grad.sum(axis=0).reshape(Bias.shape),
    )


# -- single steps -----------------------------------------------------------------------------
def _gru_unit_shapes(ctx: Infer) -> None:
    x, h = ctx.x("Input"), ctx.x("HiddenPrev")
    ctx.set("Gate", (x.shape[0], 3 * h.shape[1]), x.dtype)
    ctx.set("ResetHiddenPrev", (x.shape[0], h.shape[1]), x.dtype)
    ctx.set("Hidden", (x.shape[0], h.shape[1]), x.dtype)


@op(
    "gru_unit",
    infer=_gru_unit_shapes,
    grad=GradOp(
        uses=("Input", "HiddenPrev", "Weight", "Bias", "ResetHiddenPrev", "Gate"),
        wrt=("Input", "HiddenPrev", "Weight", "Bias"),
        of=("Hidden",),
        also=("Gate", "ResetHiddenPrev"),
    ),
    returns="Gate ResetHiddenPrev Hidden",
    lod=None,
)
def gru_unit(
    xp: Array,
    Input: Array,
    HiddenPrev: Array,
    Weight: Array,
    Bias: Array,
    activation_: int,
    gate_activation: int,
    origin_mode: bool,
) -> tuple[Array, ...]:
    """One step of a GRU for a batch of rows."""
    acts = activation(NUMBERED[gate_activation]), activation(NUMBERED[activation_])
    gates = Input.copy() if Bias is None else Input + Bias.reshape(-1)
    kept, hidden = _step(xp, gates, HiddenPrev, Weight, acts, origin_mode)
    return gates, kept, hidden


@op("gru_unit_grad")
def gru_unit_grad(
    xp: Array,
    HiddenPrev: Array,
    Weight: Array,
    Bias: Array,
    ResetHiddenPrev: Array,
    Gate: Array,
    dHidden: Array,
    dGate: Array,
    dResetHiddenPrev: Array,
    activation_: int,
    gate_activation: int,
    origin_mode: bool,
) -> tuple[Any, ...]:
    acts = activation(NUMBERED[gate_activation]), activation(NUMBERED[activation_])
    inner = _Inner(dGate, dResetHiddenPrev)
    grad, before = _step_gradient(xp, Gate, HiddenPrev, Weight, acts, origin_mode, dHidden, inner)
    of_weight = _weight_gradient(xp, grad, HiddenPrev, ResetHiddenPrev, Weight)
    of_bias = None if Bias is None else grad.sum(axis=0).reshape(Bias.shape)
    return grad, before, of_weight, of_bias


def _lstm_unit_shapes(ctx: Infer) -> None:
    c = ctx.x("C_prev")
    ctx.set("C", like=c)
    ctx.set("H", like=c)


def _unit_gates(xp: Array, x: Array, forget_bias: float) -> tuple[Array, Array, Array, Array]:
    """(input, forget, output, candidate), activated."""
    width = x.shape[1] // 4
    enter, forget, leave, new = (x[:, k * width : (k + 1) * width] for k in range(4))
    gates = sigmoid(xp, enter), sigmoid(xp, forget + forget_bias), sigmoid(xp, leave)
    return (*gates, xp.tanh(new))


@op(
    "lstm_unit",
    infer=_lstm_unit_shapes,
    grad=GradOp(uses=("X", "C_prev", "C"), wrt=("X", "C_prev")),
    returns="C H",
    lod=None,
)
def lstm_unit(xp: Array, X: Array, C_prev: Array, forget_bias: float) -> tuple[Array, Array]:
    """One step of an LSTM without peepholes, from summed projections."""
    enter, forget, leave, new = _unit_gates(xp, X, forget_bias)
    cell = forget * C_prev + enter * new
    return cell, leave * xp.tanh(cell)


@op("lstm_unit_grad")
def lstm_unit_grad(
    xp: Array, X: Array, C_prev: Array, C: Array, dC: Array, dH: Array, forget_bias: float
) -> tuple[Array, Array]:
    enter, forget, leave, new = _unit_gates(xp, X, forget_bias)
    seen = xp.tanh(C)
    grad = xp.zeros_like(C) if dC is None else dC
    d_leave = xp.zeros_like(C)
    if dH is not None:
        d_leave = dH * seen * leave * (1 - leave)
        grad = grad + dH * leave * (1 - seen * seen)
    d_enter = grad * new * enter * (1 - enter)
    d_forget = grad * C_prev * forget * (1 - forget)
    d_new = grad * enter * (1 - new * new)
    return xp.concatenate([d_enter, d_forget, d_leave, d_new], axis=1), grad * forget
