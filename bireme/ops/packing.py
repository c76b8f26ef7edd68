"""What recurrent operators share: packed sequences and activations with their slopes.

Sequences are packed by step: all first steps, longest sequence first, then all second steps, and so
on. This file knows arrays and LoDs, no operators.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .segments import offsets_of


# -- packing ----------------------------------------------------------------------------------
class Packed(NamedTuple):
    """Rows of sequences by step: `rows[begin:end]` are step t of the sequences that have one."""

    rows: Array
    order: Array
    bounds: tuple[tuple[int, int], ...]

    def steps(self) -> Iterator[tuple[int, int, int]]:
        """(begin, end, begin of the step before) of each step."""
        before = 0
        for begin, end in self.bounds:
            yield begin, end, before
            before = begin


def packed(xp: Array, lod: Any, operator: str, *, reverse: bool) -> Packed:
    """How the rows of sequences are packed; `reverse` starts at the ends."""
    offsets = offsets_of(lod, operator)
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    counts = np.searchsorted(-lengths[order], -np.arange(longest), side="left")
    first = offsets[1:] - 1 if reverse else offsets[:-1]
    sign = -1 if reverse else 1
    parts = [first[order[:n]] + sign * t for t, n in enumerate(counts)]
    rows = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
    ends = np.concatenate(([0], np.cumsum(counts))).tolist()
    return Packed(xp.asarray(rows), xp.asarray(order), tuple(pairwise(ends)))


def unpacked(xp: Array, values: Array, rows: Array) -> Array:
    out = xp.empty_like(values)
    out[rows] = values
    return out


def previous(xp: Array, run: Packed, values: Array, initial: Array) -> Array:
    """For each packed row the value of the step before."""
    out = xp.empty_like(values)
    for t, (begin, end, before) in enumerate(run.steps()):
        count = end - begin
        out[begin:end] = initial[:count] if t == 0 else values[before : before + count]
    return out


def before(xp: Array, run: Packed, values: Array, initial: Array, distance: int) -> Array:
    """For each row, as they stand unpacked, the value of the step before, which stands `distance`
    rows before it.
    """
    out = xp.empty_like(values)
    if distance > 0:
        out[distance:] = values[:-distance]
    else:
        out[:distance] = values[-distance:]
    if run.bounds:
        first = run.bounds[0][1]
        out[run.rows[:first]] = initial[:first]
    return out


def initial(xp: Array, given: Array, run: Packed, width: int, like: Array) -> Array:
    if given is None:
        return xp.zeros((len(run.order), width), dtype=like.dtype)
    return given[run.order]


def initial_gradient(xp: Array, grad: Array, order: Array) -> Array:
    out = xp.empty_like(grad)
    out[order] = grad
    return out


# -- activations ------------------------------------------------------------------------------
class Activation(NamedTuple):
    """A function (xp, x, out), whose result may take the place of its argument, and its derivative
    by the function's value.
    """

    value: Callable[..., Array]
    slope: Callable[[Array, Array], Array]


def sigmoid(xp: Array, x: Array, out: Array = None) -> Array:
    found = xp.multiply(x, 0.5)  # contiguous, which tanh takes twice as fast as a part of rows
    xp.tanh(found, out=found)
    found += 1
    return xp.multiply(found, 0.5, out=found if out is None else out)


def _identity(xp: Array, x: Array, out: Array = None) -> Array:
    if out is None or out is x:
        return x
    out[...] = x
    return out


def _tanh(xp: Array, x: Array, out: Array = None) -> Array:
    return xp.tanh(x, out=out)


def _relu(xp: Array, x: Array, out: Array = None) -> Array:
    return xp.maximum(x, 0, out=out)


ACTIVATIONS: dict[Any, Activation] = {
    "identity": Activation(_identity, lambda xp, y: xp.ones_like(y)),
    "sigmoid": Activation(sigmoid, lambda xp, y: y * (1 - y)),
    "tanh": Activation(_tanh, lambda xp, y: 1 - y * y),
    "relu": Activation(_relu, lambda xp, y: (y > 0).astype(y.dtype)),
}
NUMBERED = ("identity", "sigmoid", "tanh", "relu")


def activation(name: str) -> Activation:
    """The activation of that name.

    Raises:
        InvalidArgument: there is none.
    """
    found = ACTIVATIONS.get(name)
    if found is None:
        raise InvalidArgument(
            f"activation {name!r} is not known here", hint=f"use one of {', '.join(ACTIVATIONS)}"
        )
    return found
