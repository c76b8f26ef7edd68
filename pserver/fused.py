"""Fused updates at work: one large parameter piece by piece, many small ones side by side.

The operators' own kernels compute, in the program's order. The file knows a rule's cells and
arrays; which blocks are such rules is decided in `fusion`.
"""

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from bireme.ir import Operator
from bireme.ops.table import ROWS, Role, Row
from bireme.runtime.arrays import Array
from bireme.runtime.binding import parameters_of
from bireme.runtime.scope import Cell, Scope

__all__ = ["RULES", "SMALL", "Group", "Rule", "Slots", "Update"]

Slots = Mapping[str, Array]  # where new parameters are wanted

# Rules that work element by element, with the states that are one number for the whole parameter.
RULES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": (),
    "adagrad": (),
    "decayed_adagrad": (),
    "adadelta": (),
    "rmsprop": (),
    "ftrl": (),
    "adam": ("Beta1Pow", "Beta2Pow"),
}
PIECE = 1 << 15  # elements: five float32 arrays of this size fit a core's cache
SMALL = 1 << 14  # elements: below this, parameters go together
_IGNORED = ("op_role_var", "op_namescope", "op_device", "op_role")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One block: `op` updates a parameter with the sum of `terms`, times `factor`."""

    block: int
    terms: tuple[str, ...]
    factor: float | None
    op: Operator

    @property
    def row(self) -> Row:
        return ROWS[self.op.type]

    @property
    def param(self) -> str:
        return self.op.inputs["Param"][0]

    @property
    def likeness(self) -> Any:
        """What rules have in common that may be computed together."""
        changed = set(self.row.inplace.values()) | {"Grad"}
        others = [(s, n) for s, n in self.op.inputs.items() if s not in changed]
        attrs = [(n, v) for n, v in self.op.attrs.items() if n not in _IGNORED]
        return self.op.type, len(self.terms), self.factor, repr(others), repr(attrs)


class Update:
    """A rule with its cells, and after `load` with the values of one round."""

    def __init__(self, rule: Rule, scope: Scope) -> None:
        op, row = rule.op, rule.row
        self.rule = rule
        numbers = [op.inputs[s][0] for s in RULES[op.type] if op.inputs.get(s)]
        self.numbers = frozenset(numbers)
        self.changed = [op.inputs[row.inplace[slot]][0] for slot in row.returns]
        names = [n for n in op.input_arg_names if n != op.inputs["Grad"][0]]
        self._cells = {n: scope.find_var(n) or scope.var(n) for n in names}
        self.term_cells = [scope.find_var(n) or scope.var(n) for n in rule.terms]
        self._large = [self._cells[n] for n in self.changed if n not in self.numbers]
        self._rest = [self._cells[n] for n in names if self._cells[n] not in self._large]
        self.terms: list[Array] = []
        self.param: Array = None
        self.size = 0
        self.dtype: Any = None

    def load(self) -> bool:
        """Take the present values; whether all are whole host arrays of one size and kind."""
        self.terms = [cell.value for cell in self.term_cells]
        self.param = param = self._cells[self.rule.param].value
        if type(param) is not np.ndarray or not param.size:
            return False
        self.size, self.dtype = param.size, param.dtype
        if not all(type(cell.value) is np.ndarray for cell in self._rest):
            return False
        return all(map(self._is_alike, [*self.terms, *[cell.value for cell in self._large]]))

    def _is_alike(self, value: Any) -> bool:
        return (
            type(value) is np.ndarray
            and value.size == self.size
            and value.dtype is self.dtype
            and value.flags.c_contiguous
        )

    def cell(self, name: str) -> Cell:
        return self._cells[name]

    def value(self, name: str) -> Any:
        return self._cells[name].value

    def arguments(self, given: Mapping[str, Array], gradient: Array, out: Any) -> list[Any]:
        """The kernel's arguments; `given` replaces values by name."""
        op, row = self.rule.op, self.rule.row
        found: list[Any] = []
        for p in parameters_of(row, row.kernel):
            if p.role is Role.XP:
                found.append(np)
            elif p.role is Role.OUT:
                found.append(out)
            elif p.role is Role.ATTR:
                found.append(op.attrs.get(p.source, row.default_of(p.source)))
            elif p.source == "Grad":
                found.append(gradient)
            else:
                names = op.inputs.get(p.source, ())
                name = names[0] if names else ""
                found.append(given[name] if name in given else self.value(name) if name else None)
        return found

    def compute(self, given: Mapping[str, Array], gradient: Array, out: Sequence[Array]) -> None:
        """Call the kernel."""
        offered = out[0] if len(out) == 1 else tuple(out)
        self.rule.row.kernel(*self.arguments(given, gradient, offered))  # type: ignore[misc]

    # -- one large parameter ---------------------------------------------------------------
    def walk(self, slots: Slots, buffer: Callable[[Any], Array]) -> None:
        """Piece by piece, from the sum to the new values."""
        old = {n: self.value(n) for n in self.changed}
        new = {n: self._room(n, slots) for n in self.changed}
        flat_old = {n: a.reshape(-1) for n, a in old.items()}
        flat_new = {n: a.reshape(-1) for n, a in new.items()}
        terms = [term.reshape(-1) for term in self.terms]
        room = buffer(self.dtype)
        for begin in range(0, self.size, PIECE):
            part = slice(begin, min(begin + PIECE, self.size))
            gradient = _merged([t[part] for t in terms], self.rule.factor, room)
            given = {n: a if n in self.numbers else a[part] for n, a in flat_old.items()}
            out = [a if n in self.numbers else a[part] for n, a in flat_new.items()]
            self.compute(given, gradient, out)
        for name, array in new.items():
            self.put(name, array)

    def _room(self, name: str, slots: Slots) -> Array:
        """Where a new value goes: the wanted place, the old memory if it is ours alone, or new."""
        if name in slots:
            return slots[name]
        cell = self._cells[name]
        if name not in self.numbers and cell.value.base is None:
            value = cell.value
            if value.flags.writeable and sys.getrefcount(value) <= _ALONE + (
                name == self.rule.param
            ):
                return value
        return np.empty_like(cell.value)

    def put(self, name: str, array: Array) -> None:
        self._cells[name].value = array


_ALONE = 4  # cell, `old`, the local name, and the count's own argument


def _merged(terms: list[Array], factor: float | None, room: Array) -> Array:
    """The sum of `terms` in their order, times `factor`, as the operators compute it."""
    out, total = room[: terms[0].size], terms[0]
    for term in terms[1:]:
        total = np.add(total, term, out=out)
    if factor is not None:
        total = np.multiply(total, total.dtype.type(factor), out=out)
    return total


# -- many small parameters ---------------------------------------------------------------------
class Group:
    """Small parameters of one kind, side by side in one vector."""

    def __init__(self, updates: list[Update]) -> None:
        self.blocks = [update.rule.block for update in updates]
        self._first = first = updates[0]
        self._dtype = first.dtype
        self._total = sum(update.size for update in updates)
        self._shapes = [update.param.shape for update in updates]
        ends = list(accumulate(update.size for update in updates))
        self._ranges = [slice(b, e) for b, e in zip([0, *ends], ends, strict=False)]
        self._terms = list(zip(*(u.term_cells for u in updates), strict=True))
        self._names = list(zip(*(u.changed for u in updates), strict=True))
        self._cells = [
            [u.cell(n) for u, n in zip(updates, names, strict=True)] for names in self._names
        ]
        self._spans: dict[int, tuple[weakref.ref[Any], tuple[int, int] | None]] = {}

    def apply(self, slots: Slots) -> bool:
        """Update them all; False, and nothing done, if their values are not what they were."""
        terms = [self._column(cells) for cells in self._terms]
        old = [self._column(cells) for cells in self._cells]
        if any(column is None for column in (*terms, *old)):
            return False
        gradient = _merged(terms, self._first.rule.factor, np.empty_like(terms[0]))
        places = [self._places(names, slots) for names in self._names]
        whole = [self._whole(arrays) for arrays in places]
        new = [np.empty_like(o) if w is None else w for o, w in zip(old, whole, strict=True)]
        self._first.compute(dict(zip(self._first.changed, old, strict=True)), gradient, new)
        for cells, column, arrays, done in zip(self._cells, new, places, whole, strict=True):
            pieces = self._cut(column, arrays) if done is None else arrays
            for cell, piece in zip(cells, pieces, strict=True):
                cell.value = piece
        return True

    def _column(self, cells: Sequence[Cell]) -> Array | None:
        """The cells' values end to end; None if they are not all arrays of the expected kind."""
        try:
            column = np.concatenate([cell.value for cell in cells], axis=None)
        except (TypeError, ValueError):
            return None
        return column if column.dtype is self._dtype and column.size == self._total else None

    def _places(self, names: Sequence[str], slots: Slots) -> list[Array]:
        """Where the new values are wanted; nothing if that is not said of all."""
        found = [slots.get(name) for name in names] if slots else []
        return [] if any(place is None for place in found) else found

    def _whole(self, arrays: list[Array]) -> Array | None:
        """The wanted places as one vector, if they stand end to end."""
        if not arrays:
            return None
        first = arrays[0]
        known = self._spans.get(id(first))
        if known is None or known[0]() is not first:
            if len(self._spans) > _PLACES:
                self._spans.clear()
            # Not held: whoever offers a place wants to know whether anybody uses it.
            known = self._spans[id(first)] = (weakref.ref(first), _span(arrays))
        if known[1] is None:
            return None
        offset, size = known[1]
        return np.ndarray(size, first.dtype, first.base, offset)

    def _cut(self, column: Array, places: list[Array]) -> list[Array]:
        """The parameters in a vector, or copied to where they are wanted."""
        pieces = [
            column[part].reshape(shape)
            for part, shape in zip(self._ranges, self._shapes, strict=True)
        ]
        for place, piece in zip(places, pieces, strict=False):
            place[...] = piece
        return places or pieces


_PLACES = 8  # regions of shared memory that are remembered


def _span(arrays: Sequence[Array]) -> tuple[int, int] | None:
    """Where in their base these arrays begin, and how many elements they have, if they stand end
    to end there.
    """
    base, begin = arrays[0].base, arrays[0].ctypes.data
    if not isinstance(base, np.ndarray) or base.ndim != 1:
        return None
    end = begin
    for array in arrays:
        if array.base is not base or array.ctypes.data != end:
            return None
        end += array.nbytes
    return begin - base.ctypes.data, (end - begin) // arrays[0].itemsize
