"""Updates of many blocks as one walk through memory.

Most blocks of a server say the same: add the trainers' gradients, divide by their number, update
one parameter, element by element. Done operator by operator, every pass goes through memory once;
here a piece stays in the cache from the sum to the new parameter, and small parameters go
together. The operators' own kernels compute, in the program's order, so the bits are the same.
The file decides which blocks these are; it knows scopes and kernels, no sockets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from bireme.ir import Block, Operator, Program, VarType
from bireme.ops.table import Role
from bireme.runtime.arrays import Array
from bireme.runtime.binding import parameters_of
from bireme.runtime.scope import Scope

from .fused import PIECE, RULES, SMALL, Group, Rule, Slots, Update

__all__ = ["Fusion", "Rule", "read_rule"]


# -- which blocks ------------------------------------------------------------------------------
def read_rule(block: Block) -> Rule | None:
    """What a block does, if it is nothing but this kind of update."""
    ops = list(block.ops)
    if not ops or ops[-1].type not in RULES:
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
        self._updates: dict[int, Update] = {}
        self._sorted: dict[tuple[int, ...], tuple[list[int], list[Group]]] = {}
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
        key = tuple(blocks)
        if key not in self._sorted:
            found = self._sort(key)
            if found is None:
                return self._apply_singly(key, slots)
            self._sorted[key] = found
        alone, together = self._sorted[key]
        refused = self._apply_singly(alone, slots)
        for group in together:
            if not group.apply(slots):
                refused += self._apply_singly(group.blocks, slots)
        return refused

    def _sort(self, blocks: Sequence[int]) -> "tuple[list[int], list[Group]] | None":
        """Blocks that go alone, and those that go together; None if their values do not say."""
        alone: list[int] = []
        together: dict[Any, list[Update]] = {}
        for block in blocks:
            update = self._update(block)
            if not update.load():
                return None
            if update.size > SMALL or update.numbers:
                alone.append(block)
            else:
                key = (self._likeness[block], update.dtype)
                together.setdefault(key, []).append(update)
        return alone, [Group(updates) for updates in together.values()]

    def _apply_singly(self, blocks: Iterable[int], slots: Slots) -> list[int]:
        refused = []
        for block in blocks:
            update = self._update(block)
            if update.load():
                update.walk(slots, self._buffer)
            else:
                refused.append(block)
        return refused

    def _update(self, block: int) -> "Update":
        found = self._updates.get(block)
        if found is None:
            found = self._updates[block] = Update(self._rules[block], self._scope)
        return found

    def _buffer(self, dtype: Any) -> Array:
        """Room for one piece."""
        if dtype not in self._scratch:
            self._scratch[dtype] = np.empty(PIECE, dtype)
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
