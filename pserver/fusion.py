"""Updates of many blocks as one walk through memory.

Most blocks of a server say the same: add the trainers' gradients, divide by their number, update
one parameter, element by element. Done operator by operator, every pass goes through memory once;
here a piece stays in the cache from the sum to the new parameter, and small parameters go
together. The operators' own kernels compute, in the program's order, so the bits are the same.
The file decides which blocks these are; it knows scopes and kernels, no sockets.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from bireme.ir import Block, Operator, Program, VarType
from bireme.ops.table import ROWS, Role, Row
from bireme.runtime.arrays import Array
from bireme.runtime.binding import parameters_of
from bireme.runtime.scope import Scope

__all__ = ["Fusion", "Rule", "read_rule"]

Slots = Mapping[str, Array]  # where new parameters are wanted

# Rules that work element by element, with the states that are one number for the whole parameter.
_RULES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": (),
    "adagrad": (),
    "decayed_adagrad": (),
    "adadelta": (),
    "rmsprop": (),
    "ftrl": (),
    "adam": ("Beta1Pow", "Beta2Pow"),
}
_PIECE = 1 << 15  # elements: five float32 arrays of this size fit a core's cache
_SMALL = 1 << 14  # elements: below this, parameters go together
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


# -- which blocks ------------------------------------------------------------------------------
def read_rule(block: Block) -> Rule | None:
    """What a block does, if it is nothing but this kind of update."""
    ops = list(block.ops)
    if not ops or ops[-1].type not in _RULES:
        return None
    op = ops.pop()
    (gradient,) = op.inputs["Grad"]
    terms, factor = [gradient], None
    if ops and ops[-1].type == "scale" and _scales(ops[-1], gradient):
        factor = float(ops.pop().attrs.get("scale", 1.0))
    if ops and ops[-1].type == "sum" and ops[-1].outputs["Out"] == (gradient,):
        terms = list(ops.pop().inputs["X"])
    rule = Rule(block.idx, tuple(terms), factor, op)
    return rule if not ops and _is_dense(rule, block) and _is_plain(rule) else None


def _scales(op: Operator, name: str) -> bool:
    return (
        op.inputs["X"] == (name,)
        and op.outputs["Out"] == (name,)
        and not op.attrs.get("bias")
        and not op.inputs.get("ScaleTensor")
    )


def _is_dense(rule: Rule, block: Block) -> bool:
    found = [block._find_var_recursive(name) for name in (*rule.terms, rule.param)]
    return all(var is not None and var.type == VarType.LOD_TENSOR for var in found)


def _is_plain(rule: Rule) -> bool:
    """Whether every output is an input that changes, and each slot holds one name at most."""
    op, inplace = rule.op, rule.row.inplace
    changes = all(op.outputs[out] == op.inputs.get(inplace.get(out, "")) for out in op.outputs)
    names = op.input_arg_names
    single = all(len(given) <= 1 for given in op.inputs.values())
    kinds = {p.role for p in parameters_of(rule.row, rule.row.kernel)}
    return changes and single and len(set(names)) == len(names) and not kinds & {Role.KEY, Role.LOD}


class Fusion:
    """The fused updates of one server."""

    def __init__(self, program: Program, scope: Scope) -> None:
        self._scope = scope
        rules = [rule for block in program.blocks[1:] if (rule := read_rule(block))]
        touching = _touching(program)
        self._rules = {r.block: r for r in rules if _is_private(r, touching)}
        self._likeness = {r.block: r.likeness for r in rules}
        self._updates: dict[int, _Update] = {}
        self._scratch: dict[Any, Array] = {}

    def params(self, blocks: Iterable[int]) -> set[str]:
        """The parameters that these blocks update here."""
        return {self._rules[b].param for b in blocks if b in self._rules}

    def runs(self, blocks: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
        """Blocks in order, in stretches that `apply` may be given (True) or may not."""
        for mine, stretch in groupby(blocks, self._rules.__contains__):
            yield mine, list(stretch)

    def apply(self, blocks: Iterable[int], slots: Slots) -> list[int]:
        """Run these blocks; the ones that must be run otherwise, for what their values are."""
        together: dict[Any, list[_Update]] = {}
        refused: list[int] = []
        for block in blocks:
            update = self._update(block)
            if not update.load():
                refused.append(block)
            elif update.size > _SMALL or update.numbers:
                update.walk(slots, self._buffer)
            else:
                key = (self._likeness[block], update.dtype)
                together.setdefault(key, []).append(update)
        for group in together.values():
            _all_at_once(group, slots)
        return refused

    def _update(self, block: int) -> "_Update":
        found = self._updates.get(block)
        if found is None:
            found = self._updates[block] = _Update(self._rules[block], self._scope)
        return found

    def _buffer(self, dtype: Any) -> Array:
        """Room for one piece."""
        if dtype not in self._scratch:
            self._scratch[dtype] = np.empty(_PIECE, dtype)
        return self._scratch[dtype]


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


class _Update:
    """A rule with its cells, and after `load` with the values of one round."""

    def __init__(self, rule: Rule, scope: Scope) -> None:
        op, row = rule.op, rule.row
        self.rule = rule
        numbers = [op.inputs[s][0] for s in _RULES[op.type] if op.inputs.get(s)]
        self.numbers = frozenset(numbers)
        self.changed = [op.inputs[row.inplace[slot]][0] for slot in row.returns]
        names = [n for n in op.input_arg_names if n != op.inputs["Grad"][0]]
        self._cells = {n: scope.find_var(n) or scope.var(n) for n in names}
        self._terms = [scope.find_var(n) or scope.var(n) for n in rule.terms]
        self._large = [self._cells[n] for n in self.changed if n not in self.numbers]
        self._rest = [self._cells[n] for n in names if self._cells[n] not in self._large]
        self.terms: list[Array] = []
        self.param: Array = None
        self.size = 0
        self.dtype: Any = None

    def load(self) -> bool:
        """Take the present values; whether all are whole host arrays of one size and kind."""
        self.terms = [cell.value for cell in self._terms]
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
        for begin in range(0, self.size, _PIECE):
            part = slice(begin, min(begin + _PIECE, self.size))
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
def _all_at_once(group: list[_Update], slots: Slots) -> None:
    """Parameters of one kind, side by side."""
    first = group[0]
    terms = [
        np.concatenate(each, axis=None) for each in zip(*(u.terms for u in group), strict=True)
    ]
    gradient = _merged(terms, first.rule.factor, np.empty_like(terms[0]))
    columns = list(zip(*(u.changed for u in group), strict=True))
    old = [
        np.concatenate([u.value(n) for u, n in zip(group, names, strict=True)], axis=None)
        for names in columns
    ]
    new = [np.empty_like(column) for column in old]
    first.compute(dict(zip(first.changed, old, strict=True)), gradient, new)
    for names, column in zip(columns, new, strict=True):
        begin = 0
        for update, name in zip(group, names, strict=True):
            piece = column[begin : begin + update.size].reshape(update.param.shape)
            begin += update.size
            if name in slots:
                slots[name][...] = piece
                piece = slots[name]
            update.put(name, piece)
