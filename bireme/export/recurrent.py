"""LSTM and GRU over sequences, as ONNX's own operators.

The inputs of Fluid's are projected already, so the input weights of ONNX's only put the gates into
its order.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array

from .table import Call, converts

ACTIVATIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}


def _activations(op: Call, *attrs: str) -> list[str]:
    names = [op.attr(name) for name in attrs]
    for name in names:
        if name not in ACTIVATIONS:
            raise op.refused(f"the activation {name!r}", f"use one of {', '.join(ACTIVATIONS)}")
    return [ACTIVATIONS[name] for name in names]


def _selection(width: int, gates: list[tuple[int, float]]) -> Array:
    """[gates * width, gates * width]: gate i of ONNX is gate gates[i][0] of Fluid, times a sign."""
    out = np.zeros((len(gates), width, len(gates), width))
    for to, (of, sign) in enumerate(gates):
        out[to, :, of] = sign * np.eye(width)
    return out.reshape(len(gates) * width, -1)


def _run(op: Call, kind: str, parts: list[Array], initial: list[str], **attrs: Any) -> None:
    """A recurrent operator over padded sequences: [sequences, steps, k] -> rows of Hidden.

    `parts` are W, R, B and perhaps P of ONNX's operator, for one direction.
    """
    g, seq, dtype = op.graph, op.sequences("Input"), op.dtype("Input")
    width = op.array("Weight").shape[0]
    x = g.add("Transpose", seq.padded(op.x("Input"), 0, dtype), perm=[1, 0, 2])
    w, r, b, *peepholes = (g.constant(part[None], dtype) for part in parts)
    states = [g.add("Unsqueeze", op.x(slot), g.ints(0)) if op.has(slot) else "" for slot in initial]
    inputs = [x, w, r, b, g.cast(seq.lengths, "int32"), *states, *peepholes]
    while inputs[-1] == "":
        inputs.pop()
    direction = "reverse" if op.attr("is_reverse") else "forward"
    y = g.add(kind, *inputs, hidden_size=width, direction=direction, **attrs)
    steps = g.add("Transpose", g.add("Squeeze", y, g.ints(1)), perm=[1, 0, 2])
    op.bind("Hidden", seq.unpadded(steps, width, op.op.output("Hidden")[0]))


@converts("lstm")
def lstm(op: Call) -> None:
    """Fluid's gates are candidate, input, forget, output; those of ONNX input, output, forget,
    candidate.
    """
    weight, bias = op.array("Weight"), op.array("Bias").reshape(-1)
    width, order = weight.shape[0], [1, 3, 2, 0]
    recurrent = np.concatenate([weight[:, k * width : (k + 1) * width].T for k in order])
    biases = [bias[k * width : (k + 1) * width] for k in order]
    parts = [
        _selection(width, [(k, 1.0) for k in order]),
        recurrent,
        np.concatenate([*biases, np.zeros(4 * width)]),
    ]
    if op.attr("use_peepholes"):
        looks = [bias[(4 + k) * width : (5 + k) * width] for k in (0, 2, 1)]
        parts.append(np.concatenate(looks))
    acts = _activations(op, "gate_activation", "candidate_activation", "cell_activation")
    _run(op, "LSTM", parts, ["H0", "C0"], activations=acts)


@converts("gru")
def gru(op: Call) -> None:
    """Fluid's update gate lets the new state in, ONNX's keeps the old one: its sign is turned."""
    weight = op.array("Weight")
    width = weight.shape[0]
    gates, candidate = _matrices(weight)
    acts = _activations(op, "gate_activation", "activation")
    turned = -1.0
    if op.attr("origin_mode"):
        turned = 1.0
    elif acts[0] != "Sigmoid":
        raise op.refused("a gate that is no sigmoid", "use origin_mode=True")
    bias = op.array("Bias").reshape(-1) if op.has("Bias") else np.zeros(3 * width)
    parts = [
        _selection(width, [(0, turned), (1, 1.0), (2, 1.0)]),
        np.concatenate([turned * gates[:, :width].T, gates[:, width:].T, candidate.T]),
        np.concatenate([turned * bias[:width], bias[width:], np.zeros(3 * width)]),
    ]
    _run(op, "GRU", parts, ["H0"], activations=acts, linear_before_reset=0)


def _matrices(weight: Array) -> tuple[Array, Array]:
    """(weights [D, 2D] of update and reset, weights [D, D] of the candidate)."""
    width = weight.shape[0]
    flat, cut = weight.reshape(-1), 2 * width * width
    return flat[:cut].reshape(width, 2 * width), flat[cut:].reshape(width, width)
