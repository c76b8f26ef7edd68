"""GRU over sequences, and the single steps of GRU and LSTM.

Gates stand in the order update, reset, candidate. The weight holds two matrices one after the
other: [D, 2D] for the gates, [D, D] for the candidate.
"""

from typing import Any

from bireme.arrays.namespaces import Array

from .gru_steps import (
    STEPS,
    Backward,
    Forward,
    Steps,
    kind_of,
    run_backward,
    run_forward,
    weight_gradient,
)
from .packing import (
    NUMBERED,
    Packed,
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
    compiled="gru",
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
    *,
    steps: Steps = STEPS,
) -> tuple[Array, ...]:
    """Gated recurrent units over sequences of projected inputs."""
    run = packed(xp, Input_lod, "gru", reverse=is_reverse)
    kind = kind_of(gate_activation, activation_, origin_mode)
    bias = None if Bias is None else Bias.reshape(-1)
    forward = steps.forward(xp, kind, run, Input, bias)
    run_forward(xp, run, Weight, initial(xp, H0, run, Weight.shape[0], Input), forward)
    hidden = unpacked(xp, forward.hidden, run.rows)
    return hidden, forward.gates, forward.kept, forward.hidden


@op("gru_grad", infer=flat_gradients, lod=lod_of("Input@GRAD", "Input"), compiled="gru")
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
    *,
    steps: Steps = STEPS,
) -> tuple[Any, ...]:
    run = packed(xp, Input_lod, "gru_grad", reverse=is_reverse)
    width = Weight.shape[0]
    kind = kind_of(gate_activation, activation_, origin_mode)
    h_before = previous(xp, run, BatchHidden, initial(xp, H0, run, width, BatchHidden))
    backward = steps.backward(xp, kind, run, BatchGate, h_before, dHidden)
    d_h = xp.zeros((len(run.order), width), dtype=BatchHidden.dtype)
    run_backward(xp, run, Weight, d_h, backward)
    grad = backward.grad
    return (
        unpacked(xp, grad, run.rows),
        None if H0 is None else initial_gradient(xp, d_h, run.order),
        weight_gradient(xp, grad, h_before, BatchResetHiddenPrev, Weight),
        None if Bias is None else grad.sum(axis=0).reshape(Bias.shape),
    )


# -- single steps -----------------------------------------------------------------------------
def _gru_unit_shapes(ctx: Infer) -> None:
    x, h = ctx.x("Input"), ctx.x("HiddenPrev")
    ctx.set("Gate", (x.shape[0], 3 * h.shape[1]), x.dtype)
    ctx.set("ResetHiddenPrev", (x.shape[0], h.shape[1]), x.dtype)
    ctx.set("Hidden", (x.shape[0], h.shape[1]), x.dtype)


def _single(xp: Array, rows: Array) -> Packed:
    """A batch of one step."""
    every = xp.arange(len(rows))
    return Packed(every, every, ((0, len(rows)),))


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
    kind = kind_of(NUMBERED[gate_activation], NUMBERED[activation_], origin_mode)
    bias = None if Bias is None else Bias.reshape(-1)
    run = _single(xp, HiddenPrev)
    forward = Forward(xp, kind, run, Input, bias)
    run_forward(xp, run, Weight, HiddenPrev, forward)
    return forward.gates, forward.kept, forward.hidden


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
    kind = kind_of(NUMBERED[gate_activation], NUMBERED[activation_], origin_mode)
    run, before = _single(xp, HiddenPrev), xp.zeros_like(HiddenPrev)
    inner = dGate, dResetHiddenPrev
    backward = Backward(xp, kind, run, Gate, HiddenPrev, dHidden, *inner)
    run_backward(xp, run, Weight, before, backward)
    grad = backward.grad
    of_weight = weight_gradient(xp, grad, HiddenPrev, ResetHiddenPrev, Weight)
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
