"""The gradients of a round as few bytes: where a block begins by adding those of all trainers, only
the sum is kept.

Bit for bit the same update follows from the sum. It takes the place of the first term, and the
others are -0.0, to which adding changes nothing, whatever the sign of a zero. The file knows
programs and arrays.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.ir import Block, Program, VarType
from bireme.net.layouts import Value

from ..rules.server_spec import Settings

__all__ = ["RoundPayloads"]


class RoundPayloads:
    """The sums of one server's program."""

    def __init__(self, program: Program, settings: Settings) -> None:
        found = (_terms(program.block(block)) for block in settings.blocks)
        self._sums = [t for t in found if t and set(t) <= settings.gradients.keys()]
        self._room: dict[str, Array] = {}
        self._nothing: dict[str, Array] = {}

    def summed(
        self, values: Mapping[str, Value], absent: Iterable[str]
    ) -> tuple[dict[str, Value], tuple[str, ...], tuple[str, ...]]:
        """The gradients to keep, those that were absent, and the first terms of the sums. The sums
        are overwritten by the next call.
        """
        kept, missing, first = dict(values), set(absent), []
        for terms in self._sums:
            come = [kept[name] for name in terms if name in kept]
            given = len(come) + sum(name in missing for name in terms) == len(terms)
            if not come or not given or not all(type(v) is np.ndarray for v in come):
                continue
            zero = come[0].dtype.type(0)
            total = self._added([kept.pop(name, zero) for name in terms], come[0], terms[0])
            missing.difference_update(terms)
            kept[terms[0]] = total
            first.append(terms[0])
        return kept, tuple(name for name in absent if name in missing), tuple(first)

    def _added(self, terms: Sequence[Array], like: Array, name: str) -> Array:
        room = self._room.get(name)
        if room is None:
            room = self._room[name] = np.empty_like(like)
        total = np.add(terms[0], terms[1], out=room) if len(terms) > 1 else terms[0]
        for term in terms[2:]:
            total = np.add(total, term, out=room)
        return total

    def terms(self, values: dict[str, Value], first: Iterable[str]) -> dict[str, Value]:
        """Gradients from which the update follows that was computed from those before `summed`."""
        wanted = set(first)
        for terms in self._sums:
            if terms[0] in wanted:
                values |= {name: self._negative_zero(name, values[terms[0]]) for name in terms[1:]}
        return values

    def _negative_zero(self, name: str, like: Array) -> Array:
        if name not in self._nothing:
            self._nothing[name] = np.full(like.shape, -0.0, like.dtype)
        return self._nothing[name]


def _terms(block: Block) -> tuple[str, ...]:
    """The gradients that a block adds before anything else, if all are dense."""
    op = next(iter(block.ops), None)
    if op is None or op.type != "sum" or not all(_is_dense(block, n) for n in op.input("X")):
        return ()
    return tuple(op.input("X"))


def _is_dense(block: Block, name: str) -> bool:
    var = block._find_var_recursive(name)
    return var is not None and var.type == VarType.LOD_TENSOR
