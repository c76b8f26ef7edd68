"""Cases of LSTM and GRU, written out step by step and sequence by sequence."""

from typing import Any

import numpy as np

from .case import Case, lod, numbers
from .cases_sequence import split

Array = Any


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _lstm_step(gates: Array, c: Array, peep: Array, clip: float = 0.0) -> tuple[Array, Array]:
    """(hidden, cell) from summed gates in the order candidate, input, forget, output."""
    new, enter, forget, leave = np.split(gates, 4)
    enter, forget = _sigmoid(enter + peep[0] * c), _sigmoid(forget + peep[1] * c)
    cell = np.tanh(new) * enter + forget * c
    if clip:
        cell = np.clip(cell, -clip, clip)
    return _sigmoid(leave + peep[2] * cell) * np.tanh(cell), cell


def _lstm(
    x: Any, weight: Array, bias: Array, h0: Array, c0: Array, *, reverse: bool = False
) -> dict[str, Array]:
    width = weight.shape[0]
    flat = bias.reshape(-1)
    peep = flat[4 * width :].reshape(3, width) if flat.size > 4 * width else np.zeros((3, width))
    hidden, cells = [], []
    for i, s in enumerate(split(x)):
        h, c = h0[i], c0[i]
        states = []
        for row in s[::-1] if reverse else s:
            h, c = _lstm_step(row + flat[: 4 * width] + h @ weight, c, peep)
            states.append((h, c))
        states = states[::-1] if reverse else states
        hidden += [state[0] for state in states]
        cells += [state[1] for state in states]
    return {"Hidden": np.array(hidden, "float32"), "Cell": np.array(cells, "float32")}


def _lstmp(x: Any, weight: Array, narrow: Array, bias: Array) -> dict[str, Array]:
    width = narrow.shape[0]
    flat = bias.reshape(-1)
    peep, outs, cells = flat[4 * width :].reshape(3, width), [], []
    for s in split(x):
        r, c = np.zeros(narrow.shape[1]), np.zeros(width)
        for row in s:
            h, c = _lstm_step(row + flat[: 4 * width] + r @ weight, c, peep)
            r = np.tanh(h @ narrow)
            outs.append(r)
            cells.append(c)
    return {"Projection": np.array(outs, "float32"), "Cell": np.array(cells, "float32")}


def _gru_step(gates: Array, h: Array, weight: Array, *, origin: bool) -> Array:
    """The new state from projected gates in the order update, reset, candidate."""
    n = len(h)
    flat = weight.reshape(-1)
    both = _sigmoid(gates[: 2 * n] + h @ flat[: 2 * n * n].reshape(n, 2 * n))
    update, reset = both[:n], both[n:]
    new = np.tanh(gates[2 * n :] + (reset * h) @ flat[2 * n * n :].reshape(n, n))
    return update * h + (1 - update) * new if origin else (1 - update) * h + update * new


def _gru(x: Any, weight: Array, bias: Array, h0: Array, *, origin: bool, reverse: bool) -> Array:
    out = []
    for i, s in enumerate(split(x)):
        h, states = h0[i], []
        for row in s[::-1] if reverse else s:
            h = _gru_step(row + bias.reshape(-1), h, weight, origin=origin)
            states.append(h)
        out += states[::-1] if reverse else states
    return np.array(out, "float32")


def _dense_lstm(x: Array, h0: Array, c0: Array, flat: Array, layers: int, sides: int) -> Any:
    """(outputs, last hidden, last cell) of stacked layers; weights first, then all biases."""
    size = h0.shape[2]
    at, weights = 0, []
    for layer in range(layers):
        width = x.shape[2] if layer == 0 else size * sides
        for _ in range(sides):
            parts = []
            for n in (width, size):
                parts.append(flat[at : at + 4 * size * n].reshape(4 * size, n))
                at += 4 * size * n
            weights.append(parts)
    biases = flat[at:].reshape(len(weights), 2, 4 * size).sum(1)
    last_h, last_c = [], []
    for layer in range(layers):
        outs = []
        for side in range(sides):
            k = layer * sides + side
            h, c, steps = h0[k], c0[k], []
            for row in x[::-1] if side else x:
                gates = row @ weights[k][0].T + h @ weights[k][1].T + biases[k]
                enter, forget, new, leave = np.split(gates, 4, axis=1)
                c = _sigmoid(forget) * c + _sigmoid(enter) * np.tanh(new)
                h = _sigmoid(leave) * np.tanh(c)
                steps.append(h)
            outs.append(np.stack(steps[::-1] if side else steps))
            last_h.append(h)
            last_c.append(c)
        x = np.concatenate(outs, axis=2)
    return x, np.stack(last_h), np.stack(last_c)


def _lstm_unit(x: Array, c: Array, bias: float) -> dict[str, Array]:
    enter, forget, leave, new = np.split(x, 4, axis=1)
    cell = _sigmoid(forget + bias) * c + _sigmoid(enter) * np.tanh(new)
    return {"C": cell, "H": _sigmoid(leave) * np.tanh(cell)}


_X4 = lod(numbers(6, 8, seed=1), [2, 0, 3, 1])
_X3 = lod(numbers(6, 6, seed=2), [3, 1, 2])
_W4, _W3 = numbers(2, 8, seed=3), numbers(2, 6, seed=4)
_PEEP, _PLAIN, _B3 = numbers(1, 14, seed=5), numbers(1, 8, seed=6), numbers(1, 6, seed=7)
_H4, _C4, _H3 = numbers(4, 2, seed=8), numbers(4, 2, seed=9), numbers(3, 2, seed=10)
_ZERO = np.zeros((4, 2))
_NARROW, _WP = numbers(2, 3, seed=11), numbers(3, 8, seed=12)
_DENSE, _STATE, _CELL = numbers(3, 2, 2), numbers(4, 2, 2, seed=1), numbers(4, 2, 2, seed=2)
_FLAT = numbers(2 * 4 * 2 * (2 + 2 + 2) + 2 * 4 * 2 * (4 + 2 + 2), seed=3)

CASES = [
    Case(
        "lstm",
        {"Input": _X4, "Weight": _W4, "Bias": _PEEP},
        _lstm(_X4, _W4, _PEEP, _ZERO, _ZERO),
        grads=("Input", "Weight", "Bias"),
        out_lod={"Hidden": [[2, 0, 3, 1]]},
    ),
    Case(
        "lstm",
        {"Input": _X4, "Weight": _W4, "Bias": _PLAIN, "H0": _H4, "C0": _C4},
        _lstm(_X4, _W4, _PLAIN, _H4, _C4, reverse=True),
        {"use_peepholes": False, "is_reverse": True},
        grads=("Input", "H0", "C0", "Weight", "Bias"),
        label="states",
    ),
    Case(
        "lstmp",
        {"Input": _X4, "Weight": _WP, "ProjWeight": _NARROW, "Bias": _PEEP},
        _lstmp(_X4, _WP, _NARROW, _PEEP),
        grads=("Input", "Weight", "ProjWeight", "Bias"),
    ),
    *(
        Case(
            "gru",
            {"Input": _X3, "Weight": _W3, "Bias": _B3, "H0": _H3},
            {"Hidden": _gru(_X3, _W3, _B3, _H3, origin=origin, reverse=origin)},
            {"origin_mode": origin, "is_reverse": origin},
            grads=("Input", "H0", "Weight", "Bias"),
            label="origin" if origin else "",
            out_lod={"Hidden": [[3, 1, 2]]},
        )
        for origin in (False, True)
    ),
    Case(
        "gru_unit",
        {"Input": _X3.array[:3], "HiddenPrev": _H3, "Weight": _W3, "Bias": _B3},
        {
            "Hidden": np.stack(
                [
                    _gru_step(x + _B3[0], h, _W3, origin=False)
                    for x, h in zip(_X3.array, _H3, strict=False)
                ]
            ).astype("float32")
        },
    ),
    Case(
        "lstm_unit",
        {"X": _X4.array[:4], "C_prev": _C4},
        _lstm_unit(_X4.array[:4], _C4, 0.5),
        {"forget_bias": 0.5},
    ),
    Case(
        "cudnn_lstm",
        {"Input": _DENSE, "InitH": _STATE, "InitC": _CELL, "W": _FLAT},
        dict(
            zip(
                ("Out", "last_h", "last_c"),
                _dense_lstm(_DENSE, _STATE, _CELL, _FLAT, 2, 2),
                strict=True,
            )
        ),
        {"hidden_size": 2, "num_layers": 2, "is_bidirec": True},
        batch=False,
    ),
]
