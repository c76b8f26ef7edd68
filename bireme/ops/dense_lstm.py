"""The LSTM of equally long sequences, several layers deep, in one operator with one flat weight.

Gates stand in the order input, forget, candidate, output. The weight holds, for every layer and
direction, the matrices of the input and of the state, and after all of them the biases of both.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument, UnsupportedError

from .packing import sigmoid
from .table import GradOp, Infer, op


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
    """What the gradient of one layer in one direction needs; time runs as the layer ran."""

    x: Array
    gates: Array
    cells: Array
    hidden: Array


def _run(xp: Array, x: Array, h: Array, c: Array, w: _Weights) -> _Trace:
    """All steps; cells and hidden states have the initial ones in front."""
    size = h.shape[1]
    gates = x @ w.of_input.T + (w.bias_input + w.bias_state)
    cells = xp.empty((len(x) + 1, *c.shape), dtype=x.dtype)
    hidden = xp.empty_like(cells)
    cells[0], hidden[0] = c, h
    for t in range(len(x)):
        g = gates[t]
        g += hidden[t] @ w.of_state.T
        g[:, : 2 * size] = sigmoid(xp, g[:, : 2 * size])
        g[:, 2 * size : 3 * size] = xp.tanh(g[:, 2 * size : 3 * size])
        g[:, 3 * size :] = sigmoid(xp, g[:, 3 * size :])
        enter, forget, new, leave = (g[:, k * size : (k + 1) * size] for k in range(4))
        cells[t + 1] = forget * cells[t] + enter * new
        hidden[t + 1] = leave * xp.tanh(cells[t + 1])
    return _Trace(x, gates, cells, hidden)


def _run_back(
    xp: Array, trace: _Trace, w: _Weights, d_out: Array, d_h: Array, d_c: Array
) -> tuple[Array, Array, Array, Array]:
    """Gradients of the gates, the input, the first state and the first cell."""
    size = d_h.shape[1]
    d_gates = xp.empty_like(trace.gates)
    for t in range(len(d_out) - 1, -1, -1):
        g, d = trace.gates[t], d_gates[t]
        enter, forget, new, leave = (g[:, k * size : (k + 1) * size] for k in range(4))
        seen = xp.tanh(trace.cells[t + 1])
        d_h = d_h + d_out[t]
        d_c = d_c + d_h * leave * (1 - seen * seen)
        d[:, :size] = d_c * new * enter * (1 - enter)
        d[:, size : 2 * size] = d_c * trace.cells[t] * forget * (1 - forget)
        d[:, 2 * size : 3 * size] = d_c * enter * (1 - new * new)
        d[:, 3 * size :] = d_h * seen * leave * (1 - leave)
        d_h, d_c = d @ w.of_state, d_c * forget
    return d_gates, d_gates @ w.of_input, d_h, d_c


def _shapes(ctx: Infer) -> None:
    x, h = ctx.x("Input"), ctx.x("InitH")
    sides = 2 if ctx.attr("is_bidirec") else 1
    ctx.set("Out", (*x.shape[:2], ctx.attr("hidden_size") * sides), x.dtype)
    ctx.set("last_h", like=h)
    ctx.set("last_c", like=ctx.x("InitC"))


def _traces(
    xp: Array, x: Array, h: Array, c: Array, weights: list[_Weights], sides: int
) -> Iterator[_Trace]:
    """Layer by layer, each over the joined outputs of the layer below."""
    for layer in range(len(weights) // sides):
        outs = []
        for side in range(sides):
            k = layer * sides + side
            trace = _run(xp, x[::-1] if side else x, h[k], c[k], weights[k])
            outs.append(trace.hidden[1:][::-1] if side else trace.hidden[1:])
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
) -> tuple[Array, Array, Array]:
    """(step, batch, size) through all layers, and the last states of each."""
    _check_dropout(dropout_prob, num_layers, is_test)
    sides = 2 if is_bidirec else 1
    weights = _weights(W, Input.shape[2], hidden_size, num_layers, sides)
    traces = list(_traces(xp, Input, InitH, InitC, weights, sides))
    outs = [t.hidden[1:][::-1] if i % sides else t.hidden[1:] for i, t in enumerate(traces)]
    out = xp.ascontiguousarray(outs[-1]) if sides == 1 else xp.concatenate(outs[-2:], axis=2)
    last_h = xp.stack([t.hidden[-1] for t in traces])
    return out, last_h, xp.stack([t.cells[-1] for t in traces])


@op("cudnn_lstm_grad", lod=None)
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
) -> tuple[Array, Array, Array, Array]:
    sides = 2 if is_bidirec else 1
    weights = _weights(W, Input.shape[2], hidden_size, num_layers, sides)
    traces = list(_traces(xp, Input, InitH, InitC, weights, sides))
    d_w = xp.zeros_like(W)
    parts = _weights(d_w, Input.shape[2], hidden_size, num_layers, sides)
    d_h0 = xp.zeros_like(InitH) if dlast_h is None else dlast_h.copy()
    d_c0 = xp.zeros_like(InitC) if dlast_c is None else dlast_c.copy()
    d_x = xp.zeros_like(Out) if dOut is None else dOut
    for layer in range(num_layers - 1, -1, -1):
        flowing, d_x = d_x, 0
        for side in range(sides):
            k = layer * sides + side
            own = flowing[..., side * hidden_size : (side + 1) * hidden_size]
            found = _run_back(
                xp, traces[k], weights[k], own[::-1] if side else own, d_h0[k], d_c0[k]
            )
            d_gates, below, d_h0[k], d_c0[k] = found
            _fill_gradient(parts[k], traces[k], d_gates)
            d_x = d_x + (below[::-1] if side else below)
    return d_x, d_h0, d_c0, d_w


def _fill_gradient(into: _Weights, trace: _Trace, d_gates: Array) -> None:
    flat = d_gates.reshape(-1, d_gates.shape[2])
    into.of_input[...] = flat.T @ trace.x.reshape(-1, trace.x.shape[2])
    before = trace.hidden[:-1]
    into.of_state[...] = flat.T @ before.reshape(-1, before.shape[2])
    into.bias_input[...] = into.bias_state[...] = flat.sum(axis=0)
