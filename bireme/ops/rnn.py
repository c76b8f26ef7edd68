"""LSTM over sequences, plain and with projection.

Gates stand in the order candidate, input, forget, output. Each step is one matrix product over the
sequences that are still running.
"""

from typing import Any

from bireme.arrays.namespaces import Array

from .lstm_steps import STEPS, Steps, kind_of, run_backward, run_forward
from .packing import Packed, activation, before, initial, initial_gradient, packed, unpacked
from .products import dot
from .segments import lod_of
from .shapes import flat_gradients
from .table import GradOp, Infer, op

_PLACES = 0, 1, 2, 3  # of candidate, input gate, forget gate and output gate


def _of_gates(bias: Array, width: int) -> Array:
    """The bias without the peephole weights that may follow."""
    return None if bias is None else bias.reshape(-1)[: 4 * width]


def _first(given: Array, run: Packed) -> Array:
    """The first states in the order of the run; None for zeros."""
    return None if given is None else given[run.order]


def _bias_gradient(xp: Array, bias: Array, grad: Array, cell: Array, before: Array) -> Array:
    """Gradient of the bias, and of the peephole weights that follow it; these are not used where
    there are no cells `before`.
    """
    if bias is None:
        return None
    width = cell.shape[1]
    found = xp.zeros_like(bias)
    flat = found.reshape(-1, width)
    grad.sum(axis=0, out=flat[:4].reshape(-1))
    if before is not None:
        for k, seen in ((1, before), (2, before), (3, cell)):
            (grad[:, k * width : (k + 1) * width] * seen).sum(axis=0, out=flat[3 + k])
    return found


def _lstm_shapes(ctx: Infer) -> None:
    x = ctx.x("Input")
    width = x.shape[1] // 4
    hidden = (x.shape[0], width)
    ctx.set("Hidden", hidden, like=x)
    ctx.set("Cell", hidden, like=x)
    ctx.set("BatchGate", x.shape, x.dtype, lod_level=0)
    ctx.set("BatchCellPreAct", hidden, x.dtype, lod_level=0)


@op(
    "lstm",
    infer=_lstm_shapes,
    grad=GradOp(
        uses=tuple("Input H0 C0 Weight Bias Hidden Cell BatchGate BatchCellPreAct".split()),
        wrt=("Input", "H0", "C0", "Weight", "Bias"),
        of=("Hidden",),
        also=("Cell",),
    ),
    returns="Hidden Cell BatchGate BatchCellPreAct",
    lod="Input",
    compiled="lstm",
)
def lstm(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    H0: Array,
    C0: Array,
    Weight: Array,
    Bias: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
    *,
    steps: Steps = STEPS,
) -> tuple[Array, ...]:
    """Hochreiter and Schmidhuber's LSTM over sequences of projected inputs."""
    run = packed(xp, Input_lod, "lstm", reverse=is_reverse)
    width = Weight.shape[0]
    names = gate_activation, cell_activation, candidate_activation
    kind = kind_of(_PLACES, names, Bias, use_peepholes)
    c = initial(xp, C0, run, width, Input)
    forward = steps.forward(xp, kind, run, Input, _of_gates(Bias, width), c)
    run_forward(xp, run, Weight, _first(H0, run), forward)
    hidden = unpacked(xp, forward.hidden, run.rows)
    return hidden, forward.cells(), forward.gates, forward.activated


@op(
    "lstm_grad",
    infer=flat_gradients,
    lod=lod_of("Input@GRAD", "Input"),
    out="Weight@GRAD",
    compiled="lstm",
)
def lstm_grad(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    H0: Array,
    C0: Array,
    Weight: Array,
    Bias: Array,
    Hidden: Array,
    Cell: Array,
    BatchGate: Array,
    BatchCellPreAct: Array,
    dHidden: Array,
    dCell: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
    out: Array = None,
    *,
    steps: Steps = STEPS,
) -> tuple[Any, ...]:
    run = packed(xp, Input_lod, "lstm_grad", reverse=is_reverse)
    width, distance = Weight.shape[0], -1 if is_reverse else 1
    names = gate_activation, cell_activation, candidate_activation
    kind = kind_of(_PLACES, names, Bias, use_peepholes)
    h, c = initial(xp, H0, run, width, Hidden), initial(xp, C0, run, width, Cell)
    states = BatchGate, BatchCellPreAct, Cell, c
    backward = steps.backward(xp, kind, run, states, dHidden, dCell)
    d_h = xp.zeros((len(run.order), width), dtype=Hidden.dtype)
    run_backward(xp, run, Weight, d_h, backward)
    grad = backward.d_x()
    h_before = before(xp, run, Hidden, h, distance)
    c_before = None if kind.peep is None else before(xp, run, Cell, c, distance)
    return (
        grad,
        None if H0 is None else initial_gradient(xp, d_h, run.order),
        None if C0 is None else initial_gradient(xp, backward.d_c, run.order),
        dot(xp, h_before.T, grad, None if out is None else out[3]),
        _bias_gradient(xp, Bias, grad, Cell, c_before),
    )


# -- LSTM with projection ---------------------------------------------------------------------
def _lstmp_shapes(ctx: Infer) -> None:
    x = ctx.x("Input")
    hidden = (x.shape[0], x.shape[1] // 4)
    ctx.set("Projection", (x.shape[0], ctx.x("ProjWeight").shape[1]), like=x)
    ctx.set("Cell", hidden, like=x)
    ctx.set("BatchGate", x.shape, x.dtype, lod_level=0)
    ctx.set("BatchCellPreAct", hidden, x.dtype, lod_level=0)
    ctx.set("BatchHidden", hidden, x.dtype, lod_level=0)


@op(
    "lstmp",
    infer=_lstmp_shapes,
    grad=GradOp(
        uses=(
            *("H0", "C0", "Weight", "ProjWeight", "Bias", "Projection", "Cell", "BatchGate"),
            *("BatchCellPreAct", "BatchHidden"),
        ),
        wrt=("Input", "H0", "C0", "Weight", "ProjWeight", "Bias"),
        of=("Projection",),
        also=("Cell",),
    ),
    returns="Projection Cell BatchGate BatchCellPreAct BatchHidden",
    lod="Input",
    compiled="lstm",
)
def lstmp(
    xp: Array,
    Input: Array,
    Input_lod: Any,
    H0: Array,
    C0: Array,
    Weight: Array,
    ProjWeight: Array,
    Bias: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
    proj_activation: str,
    cell_clip: float,
    proj_clip: float,
    *,
    steps: Steps = STEPS,
) -> tuple[Array, ...]:
    """An LSTM whose output is projected before it recurs."""
    run = packed(xp, Input_lod, "lstmp", reverse=is_reverse)
    width, narrow = ProjWeight.shape
    names = gate_activation, cell_activation, candidate_activation
    kind = kind_of(_PLACES, names, Bias, use_peepholes, cell_clip)
    outs = xp.empty((len(Input), narrow), dtype=Input.dtype)
    act = activation(proj_activation)

    def project(t: int, hidden: Array) -> Array:
        begin, end = run.bounds[t]
        r = dot(xp, hidden, ProjWeight, outs[begin:end])
        act.value(xp, r, r)
        return xp.clip(r, -proj_clip, proj_clip, out=r) if proj_clip > 0 else r

    c = initial(xp, C0, run, width, Input)
    forward = steps.forward(xp, kind, run, Input, _of_gates(Bias, width), c)
    run_forward(xp, run, Weight, _first(H0, run), forward, project)
    out = unpacked(xp, outs, run.rows)
    return out, forward.cells(), forward.gates, forward.activated, forward.hidden


@op(
    "lstmp_grad",
    infer=flat_gradients,
    lod=lod_of("Input@GRAD", "Projection"),
    compiled="lstm",
)
def lstmp_grad(
    xp: Array,
    H0: Array,
    C0: Array,
    Weight: Array,
    ProjWeight: Array,
    Bias: Array,
    Projection: Array,
    Projection_lod: Any,
    Cell: Array,
    BatchGate: Array,
    BatchCellPreAct: Array,
    BatchHidden: Array,
    dProjection: Array,
    dCell: Array,
    use_peepholes: bool,
    is_reverse: bool,
    gate_activation: str,
    cell_activation: str,
    candidate_activation: str,
    proj_activation: str,
    cell_clip: float,
    proj_clip: float,
    *,
    steps: Steps = STEPS,
) -> tuple[Any, ...]:
    run = packed(xp, Projection_lod, "lstmp_grad", reverse=is_reverse)
    (width, narrow), distance = ProjWeight.shape, -1 if is_reverse else 1
    names = gate_activation, cell_activation, candidate_activation
    kind = kind_of(_PLACES, names, Bias, use_peepholes, cell_clip)
    r, c = initial(xp, H0, run, narrow, Projection), initial(xp, C0, run, width, Cell)
    projected, outs = dProjection[run.rows], Projection[run.rows]
    slope = activation(proj_activation).slope(xp, outs)
    if proj_clip > 0:
        slope *= xp.abs(outs) < proj_clip
    d_h, narrowed = xp.empty((len(run.order), width), dtype=Cell.dtype), ProjWeight.T

    def lift(t: int, d_r: Array) -> Array:
        part = slice(*run.bounds[t])
        projected[part] += d_r
        projected[part] *= slope[part]
        return dot(xp, projected[part], narrowed, d_h[: len(d_r)])

    backward = steps.backward(xp, kind, run, (BatchGate, BatchCellPreAct, Cell, c), None, dCell)
    d_r = xp.zeros((len(run.order), narrow), dtype=Projection.dtype)
    run_backward(xp, run, Weight, d_r, backward, lift)
    grad = backward.d_x()
    r_before = before(xp, run, Projection, r, distance)
    c_before = None if kind.peep is None else before(xp, run, Cell, c, distance)
    return (
        grad,
        None if H0 is None else initial_gradient(xp, d_r, run.order),
        None if C0 is None else initial_gradient(xp, backward.d_c, run.order),
        dot(xp, r_before.T, grad),
        dot(xp, BatchHidden.T, projected),
        _bias_gradient(xp, Bias, grad, Cell, c_before),
    )
