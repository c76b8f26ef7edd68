"""The LSTM of equally long sequences, several layers deep, in one operator with one flat weight.

Gates stand in the order input, forget, candidate, output. The weight holds, for every layer and
direction, the matrices of the input and of the state, and after all of them the biases of both.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument, UnsupportedError

from .lstm_steps import STEPS, Steps, kind_of, run_backward, run_forward
from .packing import Packed, before, unpacked
from .products import dot
from .table import GradOp, Infer, op

_KIND = kind_of((2, 0, 1, 3), ("sigmoid", "tanh", "tanh"))


class _Weights(NamedTuple):
    """One layer in one direction: [4H, D], [4H, H], [4H], [4H]."""

    of_input: Array
    of_state: Array
    bias_input: Array
    bias_state: Array


def _weights(flat: Array, width: int, size: int, layers: int, sides: int) -> list[_Weights]:
    """Views into the flat weight, layer by layer and direction by direction."""
    flat = flat.reshape(-1)
    inputs = [width if i < sides else size * sides for i in range(layers * sides)]
    cuts = [(4 * size * n, 4 * size * size) for n in inputs]
    need = sum(a + b for a, b in cuts) + len(cuts) * 8 * size
    if flat.size != need:
        raise InvalidArgument(f"cudnn_lstm needs {need} weights, got {flat.size}")
    matrices, at = [], 0
    for n, (first, second) in zip(inputs, cuts, strict=True):
        middle, end = at + first, at + first + second
        matrices.append((flat[at:middle].reshape(-1, n), flat[middle:end].reshape(-1, size)))
        at = end
    biases = flat[at:].reshape(-1, 2, 4 * size)
    return [_Weights(*m, *b) for m, b in zip(matrices, biases, strict=True)]


class _Trace(NamedTuple):
    """What the gradient of one layer in one direction needs."""

    run: Packed
    distance: int  # in rows, from a step to the next
    x: Array  # [rows, D], as all that is not packed
    first: tuple[Array, Array]  # state and cell
    gates: Array  # packed
    activated: Array  # cells, packed
    hidden: Array
    cells: Array

    def last(self) -> tuple[Array, Array]:
        """State and cell after the step that ran last."""
        if not self.run.bounds:
            return self.first
        rows = self.run.rows[slice(*self.run.bounds[-1])]
        return self.hidden[rows], self.cells[rows]


def _packed(xp: Array, steps: int, batch: int, *, reverse: bool) -> Packed:
    rows = xp.arange(steps * batch).reshape(steps, batch)
    bounds = tuple((t * batch, (t + 1) * batch) for t in range(steps))
    rows = xp.ascontiguousarray(rows[::-1]) if reverse else rows
    return Packed(rows.reshape(-1), xp.arange(batch), bounds)


def _run(xp: Array, x: Array, h: Array, c: Array, w: _Weights, side: int, steps: Steps) -> _Trace:
    """All steps of [step, batch, D], backwards in the second of two directions."""
    run = _packed(xp, len(x), len(h), reverse=side == 1)
    x = x.reshape(-1, x.shape[2])
    gates = dot(xp, x, w.of_input.T)
    forward = steps.forward(xp, _KIND, run, gates, w.bias_input + w.bias_state, c)
    run_forward(xp, run, xp.ascontiguousarray(w.of_state.T), h, forward)
    hidden = unpacked(xp, forward.hidden, run.rows)
    distance = -len(h) if side else len(h)
    return _Trace(
        run, distance, x, (h, c), forward.gates, forward.activated, hidden, forward.cells()
    )


def _run_back(
    xp: Array,
    trace: _Trace,
    w: _Weights,
    into: _Weights,
    d_out: Array,
    d_h: Array,
    d_c: Array,
    steps: Steps,
) -> Array:
    """The gradient of the input. Those of the weights are written `into` theirs, and those of the
    last state and cell become those of the first.
    """
    run, (h, c) = trace.run, trace.first
    states = trace.gates, trace.activated, trace.cells, c
    flowing = xp.ascontiguousarray(d_out).reshape(-1, d_out.shape[2])
    backward = steps.backward(xp, _KIND, run, states, flowing, None)
    backward.d_c[...] = d_c
    run_backward(xp, run, w.of_state.T, d_h, backward)
    d_c[...] = backward.d_c
    grad = backward.d_x()
    earlier = before(xp, run, trace.hidden, h, trace.distance)
    dot(xp, grad.T, trace.x, into.of_input)
    dot(xp, grad.T, earlier, into.of_state)
    into.bias_input[...] = into.bias_state[...] = grad.sum(axis=0)
    return dot(xp, grad, w.of_input)


def _shapes(ctx: Infer) -> None:
    x, h = ctx.x("Input"), ctx.x("InitH")
    sides = 2 if ctx.attr("is_bidirec") else 1
    ctx.set("Out", (*x.shape[:2], ctx.attr("hidden_size") * sides), x.dtype)
    ctx.set("last_h", like=h)
    ctx.set("last_c", like=ctx.x("InitC"))


def _traces(
    xp: Array, x: Array, h: Array, c: Array, weights: list[_Weights], sides: int, steps: Steps
) -> Iterator[_Trace]:
    """Layer by layer, each over the joined outputs of the layer below."""
    shape = *x.shape[:2], h.shape[2]
    for layer in range(len(weights) // sides):
        outs = []
        for side in range(sides):
            k = layer * sides + side
            trace = _run(xp, x, h[k], c[k], weights[k], side, steps)
            outs.append(trace.hidden.reshape(shape))
            yield trace
        x = outs[0] if sides == 1 else xp.concatenate(outs, axis=2)


def _check_dropout(dropout_prob: float, num_layers: int, is_test: bool) -> None:
    if dropout_prob and num_layers > 1 and not is_test:
        raise UnsupportedError(
            "lstm() does not drop out between its layers",
            hint="call it once per layer with layers.dropout between",
        )


@op(
    "cudnn_lstm",
    infer=_shapes,
    grad=GradOp(
        uses=("Input", "InitH", "InitC", "W", "Cache", "Out"),
        wrt=("Input", "InitH", "InitC", "W"),
    ),
    returns="Out last_h last_c",
    lod=None,
    compiled="lstm",
)
def cudnn_lstm(
    xp: Array,
    Input: Array,
    InitH: Array,
    InitC: Array,
    W: Array,
    hidden_size: int,
    num_layers: int,
    is_bidirec: bool,
    dropout_prob: float,
    is_test: bool,
    *,
    steps: Steps = STEPS,
) -> tuple[Array, Array, Array]:
    """(step, batch, size) through all layers, and the last states of each."""
    _check_dropout(dropout_prob, num_layers, is_test)
    sides = 2 if is_bidirec else 1
    weights = _weights(W, Input.shape[2], hidden_size, num_layers, sides)
    traces = list(_traces(xp, Input, InitH, InitC, weights, sides, steps))
    outs = [t.hidden.reshape(*Input.shape[:2], hidden_size) for t in traces[-sides:]]
    out = outs[0] if sides == 1 else xp.concatenate(outs, axis=2)
    last_h, last_c = zip(*(trace.last() for trace in traces), strict=True)
    return out, xp.stack(last_h), xp.stack(last_c)


@op("cudnn_lstm_grad", lod=None, compiled="lstm")
def cudnn_lstm_grad(
    xp: Array,
    Input: Array,
    InitH: Array,
    InitC: Array,
    W: Array,
    Out: Array,
    dOut: Array,
    dlast_h: Array,
    dlast_c: Array,
    hidden_size: int,
    num_layers: int,
    is_bidirec: bool,
    *,
    steps: Steps = STEPS,
) -> tuple[Array, Array, Array, Array]:
    sides = 2 if is_bidirec else 1
    weights = _weights(W, Input.shape[2], hidden_size, num_layers, sides)
    traces = list(_traces(xp, Input, InitH, InitC, weights, sides, steps))
    d_w = xp.zeros_like(W)
    parts = _weights(d_w, Input.shape[2], hidden_size, num_layers, sides)
    d_h = xp.zeros_like(InitH) if dlast_h is None else dlast_h.copy()
    d_c = xp.zeros_like(InitC) if dlast_c is None else dlast_c.copy()
    d_x = xp.zeros_like(Out) if dOut is None else dOut
    for layer in range(num_layers - 1, -1, -1):
        flowing, d_x = d_x, 0
        for side in range(sides):
            k = layer * sides + side
            own = flowing[..., side * hidden_size : (side + 1) * hidden_size]
            below = _run_back(xp, traces[k], weights[k], parts[k], own, d_h[k], d_c[k], steps)
            d_x = d_x + below.reshape(*Input.shape[:2], below.shape[1])
    return d_x, d_h, d_c, d_w
