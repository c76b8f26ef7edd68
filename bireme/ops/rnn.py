"""LSTM over sequences, plain and with projection.

Gates stand in the order candidate, input, forget, output. Each step is one matrix product over the
sequences that are still running.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from .packing import Activation, activation, initial, initial_gradient, packed, previous, unpacked
from .segments import lod_of
from .shapes import flat_gradients
from .table import GradOp, Infer, op
from .tiles import TILE


class _Acts(NamedTuple):
    gate: Activation
    cell: Activation
    candidate: Activation


def _acts(gate: str, cell: str, candidate: str) -> _Acts:
    return _Acts(activation(gate), activation(cell), activation(candidate))


# -- LSTM: gates in the order candidate, input, forget, output --------------------------------
class _Peepholes(NamedTuple):
    """Weights by which the cell looks into the gates."""

    input: Array
    forget: Array
    output: Array


def _peepholes(bias: Array, width: int, use: bool) -> _Peepholes | None:
    if not use or bias is None:
        return None
    flat = bias.reshape(-1)
    return _Peepholes(*(flat[(4 + k) * width : (5 + k) * width] for k in range(3)))


def _lstm_step(
    xp: Array,
    gates: Array,
    c_prev: Array,
    acts: _Acts,
    peep: Any,
    clip: float,
    into: tuple[Array, Array, Array],
) -> None:
    """Activate the gates in place; writes the cell, its activation and the hidden value `into`."""
    cell, activated, hidden = into
    width = c_prev.shape[1]
    candidate, enter, forget, leave = (gates[:, k * width : (k + 1) * width] for k in range(4))
    if peep is not None:
        enter += peep.input * c_prev
        forget += peep.forget * c_prev
    acts.candidate.value(xp, candidate, candidate)
    early = gates[:, width:] if peep is None else gates[:, width : 3 * width]
    acts.gate.value(xp, early, early)
    xp.multiply(candidate, enter, out=cell)
    cell += forget * c_prev
    if clip > 0:
        xp.clip(cell, -clip, clip, out=cell)
    if peep is not None:
        leave += peep.output * cell
        acts.gate.value(xp, leave, leave)
    activated[...] = acts.cell.value(xp, cell)
    xp.multiply(leave, activated, out=hidden)


class _Slopes(NamedTuple):
    """Derivatives of all steps. They do not depend on later steps, so they are computed at once."""

    gates: Array  # of the cell by candidate, input and forget gate; of the hidden value by output
    cell: Array  # of the hidden value by the cell
    kept: Array  # of the cell by the cell before
    inside: Array  # where a cell was not clipped; None if none can be


def _lstm_slopes(
    xp: Array,
    gates: Array,
    cells: Array,
    cell_acts: Array,
    c_before: Array,
    acts: _Acts,
    clip: float,
) -> _Slopes:
    width = cells.shape[1]
    found, of_cell = xp.empty_like(gates), xp.empty_like(cells)

    def fill(part: slice) -> None:
        quarters = [gates[part, k * width : (k + 1) * width] for k in range(4)]
        candidate, enter, _, leave = quarters
        values = enter, candidate, c_before[part], cell_acts[part]
        rules = acts.candidate, acts.gate, acts.gate, acts.gate
        for k, (rule, quarter, value) in enumerate(zip(rules, quarters, values, strict=True)):
            into = found[part, k * width : (k + 1) * width]
            xp.multiply(rule.slope(xp, quarter), value, out=into)
        xp.multiply(acts.cell.slope(xp, cell_acts[part]), leave, out=of_cell[part])

    rows = max(1, 2 * TILE // gates.shape[1])
    lanes.spread(xp, lambda part: _in_blocks(fill, part, rows), len(gates), 4 * gates.size)
    inside = xp.abs(cells) < clip if clip > 0 else None
    return _Slopes(found, of_cell, gates[:, 2 * width : 3 * width], inside)


def _in_blocks(work: Callable[[slice], None], part: slice, size: int) -> None:
    """Call `work` for parts that stay in a core's cache."""
    for begin in range(part.start, part.stop, size):
        work(slice(begin, min(begin + size, part.stop)))


def _lstm_step_gradient(
    xp: Array, slopes: _Slopes, part: slice, peep: Any, grad_h: Array, grad_c: Array
) -> tuple[Array, Array]:
    """(gradient of the gates before activation, gradient of the cell before the step); the former
    takes the place of their slopes, and `grad_c` is overwritten.
    """
    count, width = grad_c.shape
    gates = slopes.gates[part]
    d_leave = gates[:, 3 * width :]
    d_leave *= grad_h
    grad_c += grad_h * slopes.cell[part]
    if peep is not None:
        grad_c += d_leave * peep.output
    if slopes.inside is not None:
        grad_c *= slopes.inside[part]
    early = gates.reshape(count, 4, width)[:, :3]
    early *= grad_c[:, None]
    before = grad_c * slopes.kept[part]
    if peep is not None:
        before += early[:, 1] * peep.input + early[:, 2] * peep.forget
    return gates, before


def _bias_gradient(xp: Array, bias: Array, gates: Array, cell: Array, before: Array) -> Array:
    """Gradient of the bias, and of the peephole weights that follow it."""
    width = cell.shape[1]
    parts = [gates.sum(axis=0)]
    if bias.size > 4 * width:
        for k, seen in ((1, before), (2, before), (3, cell)):
            parts.append((gates[:, k * width : (k + 1) * width] * seen).sum(axis=0))
    return xp.concatenate(parts).reshape(bias.shape)


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
) -> tuple[Array, ...]:
    """Hochreiter and Schmidhuber's LSTM over sequences of projected inputs."""
    run = packed(xp, Input_lod, "lstm", reverse=is_reverse)
    width = Weight.shape[0]
    acts = _acts(gate_activation, cell_activation, candidate_activation)
    peep = _peepholes(Bias, width, use_peepholes)
    gates = Input[run.rows]
    if Bias is not None:
        gates += Bias.reshape(-1)[: 4 * width]
    cells = xp.empty((len(gates), width), dtype=Input.dtype)
    cell_acts, hidden = xp.empty_like(cells), xp.empty_like(cells)
    h = initial(xp, H0, run, width, Input)
    c = initial(xp, C0, run, width, Input)
    for t, (begin, end, _) in enumerate(run.steps()):
        part, count = gates[begin:end], end - begin
        if t or H0 is not None:
            part += h[:count] @ Weight
        before, c, h = c[:count], cells[begin:end], hidden[begin:end]
        _lstm_step(xp, part, before, acts, peep, 0.0, (c, cell_acts[begin:end], h))
    return (
        unpacked(xp, hidden, run.rows),
        unpacked(xp, cells, run.rows),
        gates,
        cell_acts,
    )


@op(
    "lstm_grad",
    infer=flat_gradients,
    lod=lod_of("Input@GRAD", "Input"),
    out="Weight@GRAD",
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
) -> tuple[Any, ...]:
    run = packed(xp, Input_lod, "lstm_grad", reverse=is_reverse)
    width = Weight.shape[0]
    acts = _acts(gate_activation, cell_activation, candidate_activation)
    peep = _peepholes(Bias, width, use_peepholes)
    cells = Cell[run.rows]
    c_before = previous(xp, run, cells, initial(xp, C0, run, width, cells))
    flowing = dHidden[run.rows]
    into_cell = None if dCell is None else dCell[run.rows]
    slopes = _lstm_slopes(xp, BatchGate, cells, BatchCellPreAct, c_before, acts, 0.0)
    grad, back = slopes.gates, xp.ascontiguousarray(Weight.T)
    d_h = xp.zeros((len(run.order), width), dtype=cells.dtype)
    d_c = xp.zeros_like(d_h)
    for begin, end in reversed(run.bounds):
        count, part = end - begin, slice(begin, end)
        d_h[:count] += flowing[part]
        if into_cell is not None:
            d_c[:count] += into_cell[part]
        found, d_c[:count] = _lstm_step_gradient(xp, slopes, part, peep, d_h[:count], d_c[:count])
        xp.matmul(found, back, out=d_h[:count])
    h_before = previous(xp, run, Hidden[run.rows], initial(xp, H0, run, width, cells))
    return (
        unpacked(xp, grad, run.rows),
        None if H0 is None else initial_gradient(xp, d_h, run.order),
        None if C0 is None else initial_gradient(xp, d_c, run.order),
        xp.matmul(h_before.T, grad, out=None if out is None else out[3]),
        _bias_gradient(xp, Bias, grad, cells, c_before),
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
) -> tuple[Array, ...]:
    """An LSTM whose output is projected before it recurs."""
    run = packed(xp, Input_lod, "lstmp", reverse=is_reverse)
    width, narrow = ProjWeight.shape
    acts = _acts(gate_activation, cell_activation, candidate_activation)
    peep = _peepholes(Bias, width, use_peepholes)
    gates = Input[run.rows] + Bias.reshape(-1)[: 4 * width]
    cells = xp.empty((len(gates), width), dtype=Input.dtype)
    cell_acts, hidden = xp.empty_like(cells), xp.empty_like(cells)
    outs = xp.empty((len(gates), narrow), dtype=Input.dtype)
    r = initial(xp, H0, run, narrow, Input)
    c = initial(xp, C0, run, width, Input)
    for begin, end in run.bounds:
        part = gates[begin:end]
        part += r[: end - begin] @ Weight
        before, c, h = c[: end - begin], cells[begin:end], hidden[begin:end]
        _lstm_step(xp, part, before, acts, peep, cell_clip, (c, cell_acts[begin:end], h))
        r = activation(proj_activation).value(xp, h @ ProjWeight)
        if proj_clip > 0:
            r = xp.clip(r, -proj_clip, proj_clip)
        outs[begin:end] = r
    back = run.rows
    return unpacked(xp, outs, back), unpacked(xp, cells, back), gates, cell_acts, hidden


@op("lstmp_grad", infer=flat_gradients, lod=lod_of("Input@GRAD", "Projection"))
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
) -> tuple[Any, ...]:
    run = packed(xp, Projection_lod, "lstmp_grad", reverse=is_reverse)
    width, narrow = ProjWeight.shape
    acts = _acts(gate_activation, cell_activation, candidate_activation)
    peep = _peepholes(Bias, width, use_peepholes)
    cells, outs = Cell[run.rows], Projection[run.rows]
    c_before = previous(xp, run, cells, initial(xp, C0, run, width, cells))
    slope = activation(proj_activation).slope(xp, outs)
    if proj_clip > 0:
        slope = slope * (xp.abs(outs) < proj_clip)
    flowing = dProjection[run.rows]
    into_cell = None if dCell is None else dCell[run.rows]
    slopes = _lstm_slopes(xp, BatchGate, cells, BatchCellPreAct, c_before, acts, cell_clip)
    grad, projected, back = slopes.gates, xp.empty_like(outs), xp.ascontiguousarray(Weight.T)
    d_r = xp.zeros((len(run.order), narrow), dtype=cells.dtype)
    d_c = xp.zeros((len(run.order), width), dtype=cells.dtype)
    for begin, end in reversed(run.bounds):
        count, part = end - begin, slice(begin, end)
        projected[part] = (flowing[part] + d_r[:count]) * slope[part]
        d_h = projected[part] @ ProjWeight.T
        if into_cell is not None:
            d_c[:count] += into_cell[part]
        found, d_c[:count] = _lstm_step_gradient(xp, slopes, part, peep, d_h, d_c[:count])
        xp.matmul(found, back, out=d_r[:count])
    r_before = previous(xp, run, outs, initial(xp, H0, run, narrow, cells))
    return (
        unpacked(xp, grad, run.rows),
        None if H0 is None else initial_gradient(xp, d_r, run.order),
        None if C0 is None else initial_gradient(xp, d_c, run.order),
        r_before.T @ grad,
        BatchHidden.T @ projected,
        _bias_gradient(xp, Bias, grad, cells, c_before),
    )
