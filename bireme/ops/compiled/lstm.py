"""LSTMs of float32 with the usual activations: one loop for what a step does between its products.

A loop takes a row at a time, which stays in the cache, in several short loops over it: each has few
enough arrays for the compiler to see that they do not overlap, so that it fills vectors.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ops import dense_lstm, rnn
from bireme.ops.lstm_steps import STEPS, Kind, Steps
from bireme.ops.packing import ACTIVATIONS, Packed

from .curves import logistic, tanh
from .loops import contracted, fits

__all__ = ["cudnn_lstm", "cudnn_lstm_grad", "lstm", "lstm_grad", "lstmp", "lstmp_grad"]

Places = tuple[int, int, int, int]


# -- forward ----------------------------------------------------------------------------------
@contracted
def _to_logistic(gates: Array, i: int, place: int) -> None:
    for j in range(gates.shape[2]):
        gates[i, place, j] = logistic(gates[i, place, j])


@contracted
def _look(gates: Array, i: int, place: int, weights: Array, cells: Array, row: int) -> None:
    for j in range(gates.shape[2]):
        gates[i, place, j] += weights[j] * cells[row, j]


@contracted
def _forward(
    product: Array,
    x: Array,
    bias: Array,
    rows: Array,
    places: Places,
    peep: Array,
    clip: np.float32,
    cells: Array,
    before: Array,
    rows_before: Array,
    gates: Array,
    activated: Array,
    hidden: Array,
) -> None:
    """One step; `before` are the cells of `rows_before`, no matter which array has them."""
    count, width = hidden.shape
    new, enter, forget, leave = places
    for i in range(count):
        row, earlier = rows[i], rows_before[i]
        for k in range(4):
            for j in range(width):
                gates[i, k, j] = product[i, k, j] + x[row, k, j] + bias[k, j]
        if len(peep):
            _look(gates, i, enter, peep[0], before, earlier)
            _look(gates, i, forget, peep[1], before, earlier)
        for j in range(width):
            gates[i, new, j] = tanh(gates[i, new, j])
        _to_logistic(gates, i, enter)
        _to_logistic(gates, i, forget)
        for j in range(width):
            kept = gates[i, forget, j] * before[earlier, j]
            value = gates[i, new, j] * gates[i, enter, j] + kept
            cells[row, j] = max(min(value, clip), -clip)
        if len(peep):
            _look(gates, i, leave, peep[2], cells, row)
        _to_logistic(gates, i, leave)
        for j in range(width):
            activated[i, j] = tanh(cells[row, j])
        for j in range(width):
            hidden[i, j] = gates[i, leave, j] * activated[i, j]


class _Forward:
    """See `bireme.ops.lstm_steps.Forward`."""

    def __init__(self, xp: Any, kind: Kind, run: Packed, x: Array, bias: Array, c0: Array) -> None:
        width = x.shape[1] // 4
        self._run, self._x = run, x.reshape(-1, 4, width)
        self._bias = np.zeros((4, width), x.dtype) if bias is None else bias.reshape(4, width)
        self._kind = _described(kind, width)
        self.gates = np.empty_like(x)
        self._gates = self.gates.reshape(self._x.shape)
        self._cells = np.empty((len(x), width), x.dtype)
        self.activated, self.hidden = np.empty_like(self._cells), np.empty_like(self._cells)
        self._before = c0, np.arange(len(run.order))

    def step(self, t: int, product: Array) -> Array:
        begin, end = self._run.bounds[t]
        rows, hidden = self._run.rows[begin:end], self.hidden[begin:end]
        _forward(
            product.reshape(-1, *self._bias.shape),
            self._x,
            self._bias,
            rows,
            *self._kind,
            self._cells,
            *self._before,
            self._gates[begin:end],
            self.activated[begin:end],
            hidden,
        )
        self._before = self._cells, rows
        return hidden

    def cells(self) -> Array:
        return self._cells


def _described(kind: Kind, width: int) -> tuple[Places, Array, np.float32]:
    """Places, peepholes, of which there may be none, and the bound of the cell."""
    peep = np.empty((0, width), np.float32) if kind.peep is None else kind.peep
    return kind.places, peep, np.float32(kind.clip if kind.clip > 0 else np.inf)


# -- backward ---------------------------------------------------------------------------------
@contracted
def _add(values: Array, i: int, more: Array, row: int) -> None:
    """A row of another array, of which there may be none."""
    if len(more):
        for j in range(values.shape[1]):
            values[i, j] += more[row, j]


@contracted
def _look_back(d_c: Array, i: int, weights: Array, found: Array, place: int) -> None:
    for j in range(d_c.shape[1]):
        d_c[i, j] += weights[j] * found[i, place, j]


@contracted
def _clipped(d_c: Array, i: int, cells: Array, row: int, clip: np.float32) -> None:
    for j in range(d_c.shape[1]):
        d_c[i, j] = d_c[i, j] if abs(cells[row, j]) < clip else np.float32(0)


@contracted
def _through_cell(
    d_c: Array,
    i: int,
    places: Places,
    before: Array,
    earlier: int,
    gates: Array,
    found: Array,
) -> None:
    """From the gradient of a cell to those of its gates and of the cell before."""
    width, one = d_c.shape[1], np.float32(1)
    new, enter, forget, _ = places
    for j in range(width):
        y = gates[i, new, j]
        found[i, new, j] = d_c[i, j] * gates[i, enter, j] * (one - y * y)
    for j in range(width):
        y = gates[i, enter, j]
        found[i, enter, j] = d_c[i, j] * gates[i, new, j] * y * (one - y)
    for j in range(width):
        y = gates[i, forget, j]
        found[i, forget, j] = d_c[i, j] * before[earlier, j] * y * (one - y)
        d_c[i, j] *= y


@contracted
def _backward(
    d_h: Array,
    flowing: Array,
    into_cell: Array,
    rows: Array,
    places: Places,
    peep: Array,
    clip: np.float32,
    cells: Array,
    before: Array,
    rows_before: Array,
    gates: Array,
    activated: Array,
    d_c: Array,
    found: Array,
    d_x: Array,
) -> None:
    """The gradient of one step; `flowing` and `into_cell` have no rows where none flows back."""
    count, width = d_h.shape
    _, enter, forget, leave = places
    one = np.float32(1)
    for i in range(count):
        row = rows[i]
        _add(d_h, i, flowing, row)
        _add(d_c, i, into_cell, row)
        for j in range(width):
            y = gates[i, leave, j]
            found[i, leave, j] = d_h[i, j] * activated[i, j] * y * (one - y)
        for j in range(width):
            y = activated[i, j]
            d_c[i, j] += d_h[i, j] * gates[i, leave, j] * (one - y * y)
        if len(peep):
            _look_back(d_c, i, peep[2], found, leave)
        if clip < np.inf:
            _clipped(d_c, i, cells, row, clip)
        _through_cell(d_c, i, places, before, rows_before[i], gates, found)
        if len(peep):
            _look_back(d_c, i, peep[0], found, enter)
            _look_back(d_c, i, peep[1], found, forget)
        for k in range(4):
            for j in range(width):
                d_x[row, k, j] = found[i, k, j]


class _Backward:
    """See `bireme.ops.lstm_steps.Backward`."""

    def __init__(
        self,
        xp: Any,
        kind: Kind,
        run: Packed,
        states: tuple[Array, Array, Array, Array],
        flowing: Array,
        into_cell: Array,
    ) -> None:
        gates, self._activated, self._cells, self._first = states
        width = self._cells.shape[1]
        none = np.empty((0, width), np.float32)
        self._flowing = none if flowing is None else flowing
        self._into_cell = none if into_cell is None else into_cell
        self._run, self._kind = run, _described(kind, width)
        self.d_c = np.zeros((len(run.order), width), np.float32)
        self._found = np.empty((len(run.order), 4 * width), np.float32)
        self._gates = gates.reshape(-1, 4, width)
        self._d_gates = np.empty_like(gates)
        self._d_x = self._d_gates.reshape(self._gates.shape)

    def step(self, t: int, d_h: Array) -> Array:
        run, (begin, end) = self._run, self._run.bounds[t]
        found = self._found[: end - begin]
        if t:
            start = run.bounds[t - 1][0]
            before = self._cells, run.rows[start : start + end - begin]
        else:
            before = self._first, np.arange(end)
        _backward(
            d_h,
            self._flowing,
            self._into_cell,
            run.rows[begin:end],
            *self._kind,
            self._cells,
            *before,
            self._gates[begin:end],
            self._activated[begin:end],
            self.d_c,
            found.reshape(-1, *self._d_x.shape[1:]),
            self._d_x,
        )
        return found

    def d_x(self) -> Array:
        return self._d_gates


# -- forms ------------------------------------------------------------------------------------
def _usual(kind: Kind) -> bool:
    sigmoid, tanh = ACTIVATIONS["sigmoid"], ACTIVATIONS["tanh"]
    return (kind.gate, kind.cell, kind.candidate) == (sigmoid, tanh, tanh)


def _taken(*arrays: Array) -> bool:
    some = [a for a in arrays if a is not None]
    return some[0].dtype == "float32" and fits(*some)


def _forward_steps(xp: Any, kind: Kind, run: Packed, x: Array, bias: Array, c0: Array) -> Any:
    usual = _usual(kind) and _taken(x, bias, c0, kind.peep)
    return (_Forward if usual else STEPS.forward)(xp, kind, run, x, bias, c0)


def _backward_steps(
    xp: Any, kind: Kind, run: Packed, states: Any, flowing: Array, into_cell: Array
) -> Any:
    usual = _usual(kind) and _taken(*states, flowing, into_cell, kind.peep)
    return (_Backward if usual else STEPS.backward)(xp, kind, run, states, flowing, into_cell)


_STEPS = Steps(_forward_steps, _backward_steps)


def lstm(*given: Any) -> Any:
    return rnn.lstm(*given, steps=_STEPS)


def lstm_grad(*given: Any) -> Any:
    return rnn.lstm_grad(*given, steps=_STEPS)


def lstmp(*given: Any) -> Any:
    return rnn.lstmp(*given, steps=_STEPS)


def lstmp_grad(*given: Any) -> Any:
    return rnn.lstmp_grad(*given, steps=_STEPS)


def cudnn_lstm(*given: Any) -> Any:
    return dense_lstm.cudnn_lstm(*given, steps=_STEPS)


def cudnn_lstm_grad(*given: Any) -> Any:
    return dense_lstm.cudnn_lstm_grad(*given, steps=_STEPS)
