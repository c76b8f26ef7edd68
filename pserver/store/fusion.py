"""Updates of many blocks as one walk through memory.

Most blocks of a server say the same: add the trainers' gradients, divide by their number, update
one parameter, element by element. Done operator by operator, every pass goes through memory once;
here a piece stays in the cache from the sum to the new parameter, and small parameters go
together, as in a trainer's own steps (`bireme.runtime.flat_updates`). The operators' own kernels
compute, in the program's order, so the bits are the same. The file decides which blocks these are
and where new values go; it knows scopes, no sockets.
"""

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ir import Block, Operator, Program, VarType
from bireme.runtime.flat_updates import SMALL, Column, FlatUpdate, Gradients, kind_of, size_of
from bireme.runtime.scope import Cell, Scope

__all__ = ["Fusion", "Rule", "read_rule"]

Slots = Mapping[str, Array]  # where new parameters are wanted

PIECE = 1 << 15  # elements: five float32 arrays of this size fit a core's cache
_HOLDERS = 2  # of a view: its column and the cell
MAX_CACHED_SPANS = 8  # regions of shared memory


# -- which blocks ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One block: `op` updates a parameter with the sum of `terms`, times `factor`; with others of
    the same `likeness`, unless that is None.
    """

    block: int
    terms: tuple[str, ...]
    factor: float | None
    op: Operator
    likeness: Any

    @property
    def param(self) -> str:
        return self.op.inputs["Param"][0]


def read_rule(block: Block) -> Rule | None:
    """What a block does, if it is nothing but this kind of update."""
    ops = list(block.ops)
    kind = kind_of(ops[-1], block) if ops else None
    if kind is None:
        return None
    op = ops.pop()
    (gradient,) = op.inputs["Grad"]
    terms, factor = [gradient], None
    if ops and ops[-1].type == "scale" and _scales(ops[-1], gradient):
        factor = float(ops.pop().attrs.get("scale", 1.0))
    if ops and ops[-1].type == "sum" and ops[-1].outputs["Out"] == (gradient,):
        terms = list(ops.pop().inputs["X"])
    if ops or not all(_is_dense(block, name) for name in terms):
        return None
    small = 0 < size_of(op, block) <= SMALL
    return Rule(block.idx, tuple(terms), factor, op, (kind, len(terms), factor) if small else None)


def _scales(op: Operator, name: str) -> bool:
    return (
        op.inputs["X"] == (name,)
        and op.outputs["Out"] == (name,)
        and not op.attrs.get("bias")
        and not op.inputs.get("ScaleTensor")
    )


def _is_dense(block: Block, name: str) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and var.type == VarType.LOD_TENSOR


class Fusion:
    """The fused updates of one server."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self._scope = scope
        rules = [rule for block in program.blocks[1:] if (rule := read_rule(block))]
        touching = _touching(program)
        self._rules = {r.block: r for r in rules if _is_private(r, touching)}
        self._groups: dict[tuple[int, ...], list[_Group]] = {}
        self._scratch: dict[Any, Array] = {}

    def params(self, blocks: Iterable[int]) -> set[str]:
        """The parameters that these blocks update here."""
        return {self._rules[b].param for b in blocks if b in self._rules}

    def runs(self, blocks: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
        """Blocks in order, in stretches that `apply` may be given (True) or may not."""
        for mine, stretch in groupby(blocks, self._rules.__contains__):
            yield mine, list(stretch)

    def apply(self, blocks: Sequence[int], slots: Slots) -> list[int]:
        """Run these blocks; the ones that must be run otherwise, for what their values are."""
        refused: list[int] = []
        for group in self._grouped(tuple(blocks)):
            if not group.apply(slots, self._scratch):
                refused += self._apply_singly(group.blocks, slots)
        return refused

    def _apply_singly(self, blocks: Sequence[int], slots: Slots) -> list[int]:
        if len(blocks) == 1:
            return list(blocks)
        return [block for block in blocks if self.apply([block], slots)]

    def _grouped(self, blocks: tuple[int, ...]) -> "list[_Group]":
        """The groups of these blocks: small like ones together, each large one alone."""
        if blocks not in self._groups:
            found: dict[Any, list[Rule]] = {}
            for rule in (self._rules[block] for block in blocks):
                key = rule.block if rule.likeness is None else rule.likeness
                found.setdefault(key, []).append(rule)
            self._groups[blocks] = [_Group(rules, self._scope) for rules in found.values()]
        return self._groups[blocks]


class _Group:
    """Rules of one likeness, with the cells of their values."""

    def __init__(self, rules: Sequence[Rule], scope: Scope) -> None:
        def cells(names: Iterable[str]) -> list[Cell]:
            return [scope.find_var(name) or scope.var(name) for name in names]

        self.blocks = [rule.block for rule in rules]
        self._factor = rules[0].factor
        self._update = FlatUpdate([rule.op for rule in rules], np)
        self._columns = self._update.columns()
        self._cells = [cells(names) for names in self._update.names]
        self._terms = [cells(names) for names in zip(*(r.terms for r in rules), strict=True)]
        self._others = cells(self._update.others)
        self._adjoining = Adjoining()

    def apply(self, slots: Slots, scratch: dict[Any, Array]) -> bool:
        """Update them all; False, and nothing done, if their values cannot stand side by side."""
        terms = [_flat(cells) for cells in self._terms]
        if any(term is None for term in terms) or not self._loaded(terms):
            return False
        dtype, piece = terms[0].dtype, min(PIECE, terms[0].size)
        if dtype not in scratch:
            scratch[dtype] = np.empty(PIECE, dtype)
        gradients = Gradients(terms, self._factor, scratch[dtype])
        places = [self._places(names, slots) for names in self._update.names]
        targets = [self._target(c, p, piece) for c, p in zip(self._columns, places, strict=True)]
        others = [cell.value for cell in self._others]
        self._update.run(self._columns, gradients, targets, others, piece)
        for column, cells, place, target in zip(
            self._columns, self._cells, places, targets, strict=True
        ):
            _assign(column, cells, place, target)
        return True

    def _loaded(self, terms: Sequence[Array]) -> bool:
        """Whether the columns hold the present values, and the terms are like them."""
        if not all(type(cell.value) is np.ndarray for cell in self._others):
            return False
        values = [[cell.value for cell in cells] for cells in self._cells]
        held = all(c.holds(old) for c, old in zip(self._columns, values, strict=True))
        if not held and not self._adopted(values):
            return False
        flat = self._columns[0].flat
        return all(term.size == flat.size and term.dtype == flat.dtype for term in terms)

    def _adopted(self, values: Sequence[Sequence[Any]]) -> bool:
        """Whether these values could be moved to the columns."""
        if not all(type(a) is np.ndarray and a.size for column in values for a in column):
            return False
        if not self._update.fits(values, values[0]):
            return False
        for column, cells, old in zip(self._columns, self._cells, values, strict=True):
            column.adopt(old, np)
            _put(cells, column.views)
        return True

    def _places(self, names: Sequence[str], slots: Slots) -> list[Array]:
        """Where the new values are wanted; nothing if that is not said of all."""
        found = [slots.get(name) for name in names] if slots else []
        return [] if any(place is None for place in found) else found

    def _target(self, column: Column, places: list[Array], piece: int) -> Array:
        """Flat memory for new values: the wanted places, the old memory, or new."""
        wanted = self._adjoining(places)
        if wanted is not None:
            return wanted
        repeated = column.numbers and piece < self._columns[0].flat.size
        free = column.copied or not places
        if free and not repeated and column.overwritable(_HOLDERS):
            return column.flat
        return np.empty_like(column.flat)


def _flat(cells: Sequence[Cell]) -> Array:
    """The cells' values end to end; None if they are not all arrays."""
    if len(cells) == 1:
        value = cells[0].value
        return value.reshape(-1) if type(value) is np.ndarray else None
    try:
        return np.concatenate([cell.value for cell in cells], axis=None)
    except (TypeError, ValueError):
        return None


def _assign(column: Column, cells: Sequence[Cell], places: list[Array], target: Array) -> None:
    """Let the cells hold the new values, in the wanted places where there are some."""
    if places and np.may_share_memory(target, places[0]):
        column.borrow(target, places)
    elif places:
        column.copy_to(target, places)
    elif target is column.flat and not column.copied:
        return
    else:
        column.move(target, column.views)
    _put(cells, column.views)


def _put(cells: Sequence[Cell], arrays: Sequence[Array]) -> None:
    for cell, array in zip(cells, arrays, strict=True):
        cell.value = array


# -- memory of new values ----------------------------------------------------------------------
class Adjoining:
    """The flat array over a list of arrays that stand end to end.

    Lists are known again by their first array, which is not held: whoever offers memory wants to
    know whether anybody uses it.
    """

    def __init__(self) -> None:
        self._spans: dict[int, tuple[weakref.ref[Any], tuple[int, int] | None]] = {}

    def __call__(self, arrays: Sequence[Array]) -> Array | None:
        """One array for all of them; None if there are none, or gaps between them."""
        if not arrays:
            return None
        first = arrays[0]
        if len(arrays) == 1:
            return first.reshape(-1) if first.flags.c_contiguous else None
        known = self._spans.get(id(first))
        if known is None or known[0]() is not first:
            if len(self._spans) > MAX_CACHED_SPANS:
                self._spans.clear()
            known = self._spans[id(first)] = (weakref.ref(first), _span(arrays))
        if known[1] is None:
            return None
        offset, size = known[1]
        return np.ndarray(size, first.dtype, first.base, offset)


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


# -- which blocks work by themselves -----------------------------------------------------------
def _touching(program: Program) -> dict[str, set[int]]:
    """The blocks that read or write each name."""
    found: dict[str, set[int]] = {}
    for block in program.blocks[1:]:
        for op in block.ops:
            for name in (*op.input_arg_names, *op.output_arg_names):
                found.setdefault(name, set()).add(block.idx)
    return found


def _is_private(rule: Rule, touching: Mapping[str, set[int]]) -> bool:
    """Whether no other block reads or changes what this one works on."""
    own = {*rule.terms, *rule.op.inputs["Grad"], *rule.op.output_arg_names}
    return all(touching[name] == {rule.block} for name in own)
