"""GRUs of float32 with the usual activations: loops for what a step does around its products."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ops import gru as generic
from bireme.ops.gru_steps import STEPS, Kind, Steps
from bireme.ops.packing import ACTIVATIONS, Packed

from .curves import logistic, tanh
from .loops import contracted, fits

__all__ = ["gru", "gru_grad"]

_UPDATE, _RESET, _NEW = range(3)


# -- forward ----------------------------------------------------------------------------------
@contracted
def _reset(
    product: Array, x: Array, bias: Array, rows: Array, h: Array, gates: Array, kept: Array
) -> None:
    count, width = h.shape
    for i in range(count):
        row = rows[i]  # the compiler cannot know that no write to `gates` changes it
        for k in range(2):
            for j in range(width):
                gates[i, k, j] = logistic(product[i, k, j] + x[row, k, j] + bias[k, j])
        for j in range(width):
            gates[i, _NEW, j] = x[row, _NEW, j] + bias[_NEW, j]
        for j in range(width):
            kept[i, j] = gates[i, _RESET, j] * h[i, j]


@contracted
def _renew(product: Array, h: Array, origin: bool, gates: Array, hidden: Array) -> None:
    count, width = h.shape
    for i in range(count):
        for j in range(width):
            gates[i, _NEW, j] = tanh(gates[i, _NEW, j] + product[i, j])
        if origin:
            for j in range(width):
                new = gates[i, _NEW, j]
                hidden[i, j] = new + gates[i, _UPDATE, j] * (h[i, j] - new)
        else:
            for j in range(width):
                hidden[i, j] = h[i, j] + gates[i, _UPDATE, j] * (gates[i, _NEW, j] - h[i, j])


class _Forward:
    """See `bireme.ops.gru_steps.Forward`."""

    def __init__(self, xp: Any, kind: Kind, run: Packed, x: Array, bias: Array) -> None:
        width = x.shape[1] // 3
        self._run, self._origin, self._x = run, kind.origin, x.reshape(-1, 3, width)
        self._bias = np.zeros((3, width), x.dtype) if bias is None else bias.reshape(3, width)
        self.gates = np.empty_like(x)
        self._gates = self.gates.reshape(self._x.shape)
        self.kept = np.empty((len(x), width), x.dtype)
        self.hidden = np.empty_like(self.kept)

    def reset(self, t: int, product: Array, h: Array) -> Array:
        part = slice(*self._run.bounds[t])
        kept, rows = self.kept[part], self._run.rows[part]
        product = product.reshape(-1, 2, h.shape[1])
        _reset(product, self._x, self._bias, rows, h, self._gates[part], kept)
        return kept

    def renew(self, t: int, product: Array, h: Array) -> Array:
        part = slice(*self._run.bounds[t])
        hidden = self.hidden[part]
        _renew(product, h, self._origin, self._gates[part], hidden)
        return hidden


# -- backward ---------------------------------------------------------------------------------
@contracted
def _renew_back(
    d_h: Array,
    flowing: Array,
    rows: Array,
    origin: bool,
    gates: Array,
    before: Array,
    grad: Array,
) -> None:
    count, width = d_h.shape
    one = np.float32(1)
    for i in range(count):
        row = rows[i]
        for j in range(width):
            d_h[i, j] += flowing[row, j]
        for j in range(width):
            y, update = gates[i, _NEW, j], gates[i, _UPDATE, j]
            share = one - update if origin else update
            grad[i, _NEW, j] = d_h[i, j] * share * (one - y * y)
        for j in range(width):
            y = gates[i, _UPDATE, j]
            toward = gates[i, _NEW, j] - before[i, j]
            toward = -toward if origin else toward
            grad[i, _UPDATE, j] = d_h[i, j] * toward * y * (one - y)
            d_h[i, j] *= y if origin else one - y


@contracted
def _reset_back(d_kept: Array, d_h: Array, gates: Array, before: Array, grad: Array) -> None:
    count, width = d_h.shape
    one = np.float32(1)
    for i in range(count):
        for j in range(width):
            y = gates[i, _RESET, j]
            grad[i, _RESET, j] = d_kept[i, j] * before[i, j] * y * (one - y)
            d_h[i, j] += d_kept[i, j] * y


class _Backward:
    """See `bireme.ops.gru_steps.Backward`."""

    def __init__(
        self, xp: Any, kind: Kind, run: Packed, gates: Array, h_before: Array, flowing: Array
    ) -> None:
        self._run, self._origin, self._flowing = run, kind.origin, flowing
        self._gates = gates.reshape(-1, 3, h_before.shape[1])
        self._before = h_before
        self.grad = np.empty_like(gates)
        self._grad = self.grad.reshape(self._gates.shape)

    def renew(self, t: int, d_h: Array) -> Array:
        part = slice(*self._run.bounds[t])
        given = self._flowing, self._run.rows[part], self._origin
        grad = self._grad[part]
        _renew_back(d_h, *given, self._gates[part], self._before[part], grad)
        return grad[:, _NEW]

    def reset(self, t: int, d_kept: Array, d_h: Array) -> Array:
        part = slice(*self._run.bounds[t])
        _reset_back(d_kept, d_h, self._gates[part], self._before[part], self._grad[part])
        return self.grad[part, : 2 * d_h.shape[1]]


# -- forms ------------------------------------------------------------------------------------
def _takes(kind: Kind, *arrays: Array) -> bool:
    some = [a for a in arrays if a is not None]
    usual = (kind.gate, kind.candidate) == (ACTIVATIONS["sigmoid"], ACTIVATIONS["tanh"])
    return usual and some[0].dtype == "float32" and fits(*some)


def _forward(xp: Any, kind: Kind, run: Packed, x: Array, bias: Array) -> Any:
    return (_Forward if _takes(kind, x, bias) else STEPS.forward)(xp, kind, run, x, bias)


def _backward(xp: Any, kind: Kind, run: Packed, *states: Array) -> Any:
    return (_Backward if _takes(kind, *states) else STEPS.backward)(xp, kind, run, *states)


_STEPS = Steps(_forward, _backward)


def gru(*given: Any) -> Any:
    return generic.gru(*given, steps=_STEPS)


def gru_grad(*given: Any) -> Any:
    return generic.gru_grad(*given, steps=_STEPS)
