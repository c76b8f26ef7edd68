"""Coalesces updates of small parameters with equal hyperparameters into one flat update per step.

A step gathers the gradients and calls the kernel once on flat memory; the variables of the scope
are views of it (see `flat_updates`).
"""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from types import ModuleType
from typing import Any

from bireme.ir import Block

from .analysis import Access
from .context import Layout
from .flat_updates import SMALL, Column, FlatUpdate, Gradients, kind_of, size_of
from .sends import is_announced
from .steps import CONTEXT, Frame, Step

__all__ = ["coalesced", "flat_step"]

_FEWEST = 4
_HOLDERS = 3  # of a view: its column, the frame and the cell


def coalesced(chosen: Sequence[Access], block: Block) -> list[Access]:
    """The operators, with compatible updates grouped at the position of the group's last member."""
    result: list[Access] = []
    groups = _OpenGroups()
    for access in chosen:
        for group in groups.disturbed(access):
            result += _closed(group)
        key = kind_of(access.op, block)
        if key is None or not 0 < size_of(access.op, block) <= SMALL:
            result.append(access)
        else:
            groups.add(key, access)
    for group in groups.members.values():
        result += _closed(group)
    return result


class _OpenGroups:
    """Groups of updates by kind, and which of them read and write a name."""

    def __init__(self) -> None:
        self.members: dict[Any, list[Access]] = {}
        self._readers: dict[str, set[Any]] = {}
        self._writers: dict[str, set[Any]] = {}

    def add(self, key: Any, access: Access) -> None:
        self.members.setdefault(key, []).append(access)
        for name in access.reads:
            self._readers.setdefault(name, set()).add(key)
        for name in access.writes:
            self._writers.setdefault(name, set()).add(key)

    def disturbed(self, access: Access) -> list[list[Access]]:
        """Take out the groups whose updates this operator must not be moved before. An effect may
        look at any variable: it saves all of them, or tells how far they have moved.
        """
        if access.row.effect and not is_announced(access.op):
            keys = set(self.members)
        else:
            keys = {key for name in access.reads for key in self._writers.get(name, ())}
            keys.update(key for name in access.writes for key in self._readers.get(name, ()))
        return [self._taken(key) for key in list(self.members) if key in keys] if keys else []

    def _taken(self, key: Any) -> list[Access]:
        group = self.members.pop(key)
        for access in group:
            for name in access.reads:
                self._readers[name].discard(key)
            for name in access.writes:
                self._writers[name].discard(key)
        return group


def _closed(group: list[Access]) -> list[Access]:
    if len(group) < _FEWEST:
        return group
    reads = tuple(dict.fromkeys(n for a in group for n in a.reads))
    writes = tuple(dict.fromkeys(n for a in group for n in a.writes))
    return [replace(group[-1], reads=reads, writes=writes, members=tuple(group))]


def flat_step(
    access: Access, layout: Layout, xp: ModuleType, single: Sequence[Step], dead: Sequence[int]
) -> Step:
    """The closure of a group; `single` are the members' own steps, used when joining fails."""
    group = _Group(access, layout, xp)

    def step(frame: Frame) -> None:
        columns = group.loaded(frame)
        if columns is None:
            for one in single:
                one(frame)
            return
        group.run(columns, frame)
        for slot in dead:
            frame[slot] = None

    return step


class _Group:
    """Slots of a group's values in the frames of one plan."""

    def __init__(self, access: Access, layout: Layout, xp: ModuleType) -> None:
        self._update = FlatUpdate(access.ops, xp)
        self._xp = xp
        self._others = [layout.slots[name] for name in self._update.others]
        self._slots = [[layout.slots[name] for name in names] for names in self._update.names]
        self._reads = [itemgetter(*at) for at in self._slots]
        self._gradients = itemgetter(*(layout.slots[op.inputs["Grad"][0]] for op in access.ops))
        self._key = access.op.type, self._update.names[0]

    def loaded(self, frame: Frame) -> list[Column] | None:
        """The scope's columns with current values; None if they cannot be joined."""
        groups = frame[CONTEXT].scope.groups
        columns: list[Column] | None = groups.get(self._key)
        if columns is None:
            columns = groups[self._key] = self._update.columns()
        if all(c.holds(read(frame)) for c, read in zip(columns, self._reads, strict=True)):
            return columns
        values = [read(frame) for read in self._reads]
        if not self._update.fits(values, self._gradients(frame)):
            return None
        for column, old, at in zip(columns, values, self._slots, strict=True):
            column.adopt(old, self._xp)
            _put(frame, column, at)
        return columns

    def run(self, columns: Sequence[Column], frame: Frame) -> None:
        empty = self._xp.empty_like
        gradient = self._xp.concatenate([g.reshape(-1) for g in self._gradients(frame)])
        targets = [c.flat if c.overwritable(_HOLDERS) else empty(c.flat) for c in columns]
        others = [frame[slot] for slot in self._others]
        self._update.run(columns, Gradients([gradient]), targets, others)
        for column, target, at in zip(columns, targets, self._slots, strict=True):
            if target is not column.flat:
                column.move(target, column.views)
                _put(frame, column, at)


def _put(frame: Frame, column: Column, slots: Sequence[int]) -> None:
    """Store the column's views in the variables."""
    for slot, view in zip(slots, column.views, strict=True):
        frame[slot] = view
