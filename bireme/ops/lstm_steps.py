"""The steps of an LSTM over a packed batch, and their gradients.

A step is a product with the weight of the state and what happens between two products; the latter
is the affair of a `Forward` and a `Backward`, of which numba compiles other ones. Between them,
values of all rows stand as the input has them, unless they are said to be packed.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from .packing import Activation, Packed, activation, previous, unpacked
from .products import dot
from .tiles import TILE

__all__ = [
    "STEPS",
    "Backward",
    "Forward",
    "Kind",
    "Steps",
    "kind_of",
    "run_backward",
    "run_forward",
]


class Kind(NamedTuple):
    """What the gates are: their places, activations, peepholes, and the bound of the cell."""

    places: tuple[int, int, int, int]  # of candidate, input gate, forget gate and output gate
    gate: Activation
    cell: Activation
    candidate: Activation
    peep: Array = None  # [3, width]: how the cell looks into input, forget and output gate
    clip: float = 0.0

    def cuts(self, width: int) -> "_Cuts":
        early = _together(self.places[1 : 4 if self.peep is None else 3], width)
        candidate, enter, forget, leave = (_columns(k, k + 1, width) for k in self.places)
        return _Cuts(candidate, enter, forget, leave, early)


Columns = tuple[slice, slice]


class _Cuts(NamedTuple):
    """Columns of the gates, as indices."""

    candidate: Columns
    enter: Columns  # the input gate
    forget: Columns
    leave: Columns  # the output gate
    early: list[Columns]  # the gates that do not wait for the cell, neighbours in one piece


def _columns(begin: int, end: int, width: int) -> Columns:
    return slice(None), slice(begin * width, end * width)


def _together(places: Sequence[int], width: int) -> list[Columns]:
    spans = list[list[int]]()
    for k in sorted(places):
        if spans and spans[-1][1] == k:
            spans[-1][1] = k + 1
        else:
            spans.append([k, k + 1])
    return [_columns(begin, end, width) for begin, end in spans]


def kind_of(
    places: tuple[int, int, int, int],
    names: Sequence[str],
    bias: Array = None,
    peepholes: bool = False,
    clip: float = 0.0,
) -> Kind:
    """The kind with activations of these names, for gates, cell and candidate."""
    peep = None
    if peepholes and bias is not None:
        width = bias.size // 7
        peep = bias.reshape(-1)[4 * width :].reshape(3, width)
    gate, cell, candidate = map(activation, names)
    return Kind(places, gate, cell, candidate, peep, clip)


# -- forward ----------------------------------------------------------------------------------
class Forward:
    """The steps of one run, but for their products."""

    def __init__(self, xp: Any, kind: Kind, run: Packed, x: Array, bias: Array, c0: Array) -> None:
        self._xp, self._kind, self._run = xp, kind, run
        self.gates = x[run.rows]
        if bias is not None:
            self.gates += bias
        self._cuts = kind.cuts(x.shape[1] // 4)
        self._cells = xp.empty((len(x), x.shape[1] // 4), dtype=x.dtype)
        self.activated, self.hidden = xp.empty_like(self._cells), xp.empty_like(self._cells)
        self._before = c0

    def step(self, t: int, product: Array) -> Array:
        """The hidden values, from the product of the state and its weight."""
        xp, kind, cuts, (begin, end) = self._xp, self._kind, self._cuts, self._run.bounds[t]
        part = slice(begin, end)
        gates, cell, before = self.gates[part], self._cells[part], self._before[: end - begin]
        activated, hidden, peep = self.activated[part], self.hidden[part], kind.peep
        gates += product
        candidate, enter = gates[cuts.candidate], gates[cuts.enter]
        forget, leave = gates[cuts.forget], gates[cuts.leave]
        if peep is not None:
            enter += peep[0] * before
            forget += peep[1] * before
        kind.candidate.value(xp, candidate, candidate)
        for columns in cuts.early:
            some = gates[columns]
            kind.gate.value(xp, some, some)
        xp.multiply(candidate, enter, out=cell)
        xp.multiply(forget, before, out=hidden)
        cell += hidden
        if kind.clip > 0:
            xp.clip(cell, -kind.clip, kind.clip, out=cell)
        if peep is not None:
            leave += peep[2] * cell
            kind.gate.value(xp, leave, leave)
        kind.cell.value(xp, cell, activated)
        self._before = cell
        return xp.multiply(leave, activated, out=hidden)

    def cells(self) -> Array:
        return unpacked(self._xp, self._cells, self._run.rows)


# -- backward ---------------------------------------------------------------------------------
class _Slopes(NamedTuple):
    """Derivatives of all steps. They do not depend on later steps, so they are computed at once."""

    gates: Array  # of the cell by candidate, input and forget gate; of the hidden value by output
    cell: Array  # of the hidden value by the cell
    inside: Array  # where a cell was not clipped; None if none can be


def _slopes(
    xp: Any, kind: Kind, gates: Array, cells: Array, activated: Array, before: Array
) -> _Slopes:
    width = cells.shape[1]
    cuts = kind.cuts(width)
    found, of_cell = xp.empty_like(gates), xp.empty_like(cells)

    def fill(part: slice) -> None:
        some, into, seen = gates[part], found[part], activated[part]
        candidate, leave = some[cuts.candidate], some[cuts.leave]
        values = some[cuts.enter], candidate, before[part], seen
        rules = kind.candidate, kind.gate, kind.gate, kind.gate
        for rule, columns, value in zip(rules, cuts[:4], values, strict=True):
            xp.multiply(rule.slope(xp, some[columns]), value, out=into[columns])
        xp.multiply(kind.cell.slope(xp, seen), leave, out=of_cell[part])

    def work(part: slice) -> None:  # in blocks that stay in a core's cache
        size = max(1, TILE // (2 * width))
        for begin in range(part.start, part.stop, size):
            fill(slice(begin, min(begin + size, part.stop)))

    lanes.spread(xp, work, len(gates), 4 * gates.size)
    inside = xp.abs(cells) < kind.clip if kind.clip > 0 else None
    return _Slopes(found, of_cell, inside)


class Backward:
    """The gradients of the steps of one run, but for their products.

    `flowing` and `into_cell` are the gradients of all hidden values and cells, or None.
    """

    def __init__(
        self,
        xp: Any,
        kind: Kind,
        run: Packed,
        states: tuple[Array, Array, Array, Array],
        flowing: Array,
        into_cell: Array,
    ) -> None:
        gates, activated, cells, c0 = states
        cells = cells[run.rows]
        before = previous(xp, run, cells, c0)
        self._cuts = kind.cuts(cells.shape[1])
        self._xp, self._kind, self._run, self._gates = xp, kind, run, gates
        self._slopes = _slopes(xp, kind, gates, cells, activated, before)
        self._flowing = None if flowing is None else flowing[run.rows]
        self._into_cell = None if into_cell is None else into_cell[run.rows]
        self.d_c = xp.zeros((len(run.order), cells.shape[1]), dtype=cells.dtype)

    def step(self, t: int, d_h: Array) -> Array:
        """The gradient of the gates before activation, from that of the hidden values by the
        product of the next step, which is overwritten.
        """
        xp, cuts, slopes, (begin, end) = self._xp, self._cuts, self._slopes, self._run.bounds[t]
        part, d_c, peep = slice(begin, end), self.d_c[: end - begin], self._kind.peep
        gates = slopes.gates[part]
        d_candidate, d_enter = gates[cuts.candidate], gates[cuts.enter]
        d_forget, d_leave = gates[cuts.forget], gates[cuts.leave]
        if self._flowing is not None:
            d_h += self._flowing[part]
        if self._into_cell is not None:
            d_c += self._into_cell[part]
        d_leave *= d_h
        d_c += xp.multiply(d_h, slopes.cell[part], out=d_h)
        if peep is not None:
            d_c += d_leave * peep[2]
        if slopes.inside is not None:
            d_c *= slopes.inside[part]
        d_candidate *= d_c
        d_enter *= d_c
        d_forget *= d_c
        d_c *= self._gates[part][cuts.forget]
        if peep is not None:
            d_c += d_enter * peep[0] + d_forget * peep[1]
        return gates

    def d_x(self) -> Array:
        """The gradient of all gates before activation."""
        return unpacked(self._xp, self._slopes.gates, self._run.rows)


# -- with the products ------------------------------------------------------------------------
class Steps(NamedTuple):
    """What runs between the products."""

    forward: Callable[..., Forward]
    backward: Callable[..., Backward]


STEPS = Steps(Forward, Backward)


def run_forward(
    xp: Any,
    run: Packed,
    weight: Array,
    h: Array,
    steps: Forward,
    project: Callable[[int, Array], Array] | None = None,
) -> None:
    """All steps from the state `h`, None for zeros; `project` maps the hidden values of a step to
    the state.
    """
    scratch = xp.empty((len(run.order), weight.shape[1]), dtype=weight.dtype)
    for t, (begin, end) in enumerate(run.bounds):
        product = scratch[: end - begin]
        if h is None:
            product[...] = 0
        else:
            dot(xp, h[: end - begin], weight, product)
        h = steps.step(t, product)
        if project is not None:
            h = project(t, h)


def run_backward(
    xp: Any,
    run: Packed,
    weight: Array,
    d_h: Array,
    steps: Backward,
    lift: Callable[[int, Array], Array] | None = None,
) -> None:
    """All steps back; `d_h`, the gradient of the last states, becomes that of the first. `lift`
    maps the gradient of the states of a step to that of its hidden values.
    """
    back = xp.ascontiguousarray(weight.T)  # of few rows, a product with a transposed matrix is slow
    for t in reversed(range(len(run.bounds))):
        begin, end = run.bounds[t]
        of_states = d_h[: end - begin]
        found = steps.step(t, of_states if lift is None else lift(t, of_states))
        dot(xp, found, back, of_states)
