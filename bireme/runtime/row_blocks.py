"""Computes a group of elementwise operators block by block: a block of rows goes through all of
them while it is in the cache, and values that nobody else reads never exist as a whole.

Groups are marked by the pass `fuse_elementwise`. Where values turn out to be small or of different
shapes, the operators run one after the other, as without the pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.passes.fuse_elementwise import GROUP

from .analysis import Access, last_uses
from .binding import Binding
from .context import Env
from .run_errors import explain
from .steps import CONTEXT, Frame, Step
from .units import Unit

__all__ = ["block_step", "grouped"]

_BLOCK = 1 << 16  # elements
_LEAST = 1 << 19  # elements of a whole: smaller ones stay in the cache by themselves


def grouped(chosen: Sequence[Access], binding: Binding) -> list[Access]:
    """The operators, with those that are computed together as one; none on a device, none where
    values carry LoD or are written into the buffers of an effect.
    """
    if binding.xp is not np or binding.layout.lod:
        return list(chosen)
    found: list[Access] = []
    for number, run in groupby(chosen, lambda access: access.op.attrs.get(GROUP)):
        members = tuple(run)
        offered = any(n in binding.offered for a in members for n in a.writes)
        found += members if number is None or offered or len(members) < 2 else [_one(members)]
    return found


def _one(members: tuple[Access, ...]) -> Access:
    writes = tuple(dict.fromkeys(n for a in members for n in a.writes))
    reads = tuple(dict.fromkeys(n for a in members for n in a.reads if n not in writes))
    return replace(members[-1], reads=reads, writes=writes, members=members)


def block_step(access: Access, binding: Binding, dead: Iterable[str]) -> Step:
    """The closure of a group."""
    group = _Group(access, binding, frozenset(dead))

    def step(frame: Frame) -> None:
        made = group.blocked(frame)
        if made is None:
            group.one_by_one(frame)
            return
        for name, out in made.items():
            frame[group.slots[name]] = out
        for slot in group.gone:
            frame[slot] = None

    return step


class _Group:
    """The operators of a group, bound twice: to whole values, and to blocks of rows."""

    def __init__(self, access: Access, binding: Binding, dead: frozenset[str]) -> None:
        self._access, self._binding, self.slots = access, binding, binding.layout.slots
        lasting = frozenset((*access.reads, *access.writes)) - dead
        dying = last_uses(access.members, lasting)
        inner = [tuple(n for n in names if n in access.writes) for names in dying]
        self._kept = {n: _declared(binding, n) for n in access.writes if n not in dead}
        self._singly = self._bound(binding, dying)
        self._blocked = self._bound(replace(binding, offered=self._kept), inner)
        full = _declared(binding, access.writes[0])[0]
        self.whole = [self.slots[n] for n in access.reads if _declared(binding, n)[0] == full]
        self.gone = [self.slots[n] for n in access.reads if n in dead]

    def _bound(self, binding: Binding, dying: Iterable[tuple[str, ...]]) -> list[Step]:
        pairs = zip(self._access.members, dying, strict=True)
        return [binding.step(member, names) for member, names in pairs]

    def one_by_one(self, frame: Frame) -> None:
        """Run the operators as if they were no group; errors name the one that failed."""
        for member, step in zip(self._access.members, self._singly, strict=True):
            try:
                step(frame)
            except Exception as error:
                unit = Unit(member.ops, member.index, step)
                explain(error, self._binding.block, unit, Env(self._binding.layout, frame))

    def blocked(self, frame: Frame) -> dict[str, Array] | None:
        """The values that others read, computed from the whole inputs block by block; None where
        that does not pay, or where an operator fails: it fails again by itself, with its name.
        """
        values = [frame[slot] for slot in self.whole]
        if not _divisible(values):
            return None
        try:
            return self._in_blocks(frame, values)
        except Exception:
            return None

    def _in_blocks(self, frame: Frame, values: Sequence[Array]) -> dict[str, Array]:
        like, rows = values[0], len(values[0])
        made = {n: np.empty(like.shape, dtype) for n, (_, dtype) in self._kept.items()}
        height = max(1, _BLOCK * rows // like.size)

        def work(part: slice) -> None:
            own = frame.copy()
            parts: dict[str, Array] = {}
            own[CONTEXT] = replace(frame[CONTEXT], offer=lambda name, *_: parts[name])
            for start in range(part.start, part.stop, height):
                some = slice(start, min(start + height, part.stop))
                for slot, value in zip(self.whole, values, strict=True):
                    own[slot] = value[some]
                parts.update((name, out[some]) for name, out in made.items())
                for step in self._blocked:
                    step(own)
                for name, out in parts.items():
                    if own[self.slots[name]] is not out:  # the kernel brought memory of its own
                        out[...] = own[self.slots[name]]

        lanes.spread(np, work, rows, len(self._blocked) * like.size)
        return made


def _divisible(values: Sequence[Any]) -> bool:
    """Whether these are large arrays of one shape."""
    first = values[0] if values else None
    if not isinstance(first, np.ndarray) or first.ndim < 2 or first.size < _LEAST:
        return False
    return all(isinstance(v, np.ndarray) and v.shape == first.shape for v in values)


def _declared(binding: Binding, name: str) -> tuple[tuple[int, ...], str]:
    """The shape and dtype of a variable."""
    var = binding.block._var_recursive(name)
    return tuple(var.shape), var.numpy_dtype
