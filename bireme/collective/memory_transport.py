"""Collective algorithms through shared memory, for ranks of one host.

Each rank owns a region that the others map. An array passes through the regions one window at a
time, in pipelined stages: fill window k, reduce everybody's window k-1, copy the results of
window k-2, synchronize. There are more slots than stages, so nobody overwrites what another rank
still reads.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.net.memory import Mappings, Segment, available

from .group import Group
from .reduction import all_at, fold
from .transfers import Guard

__all__ = ["CAN_SPIN", "REGION", "MemoryTransport", "shared_regions"]

_NAME = 64  # bytes of a region's name
_SLOT = 4 << 20  # bytes of one window
_SLOTS = 4  # three stages, and the first of the next call
_HEAD = 4096  # a counter precedes the slots
REGION = _HEAD + _SLOT * _SLOTS

# Reading a counter orders memory only where stores become visible in order (x86).
CAN_SPIN = platform.machine() in ("x86_64", "AMD64")
_BRISK = 0.005  # seconds of spinning before a wait begins to sleep
_LOOK = 0.05  # seconds between two looks at the other ranks

Range = tuple[int, int]  # elements [begin, end) of the array
Stage = Callable[[int, Range], None]  # (slot, range)


def shared_regions(group: Group, size: int) -> list[Array]:
    """A region of `size` bytes of every rank, mapped by all of them; empty if any rank cannot map
    another's.
    """
    mine, names = np.zeros(_NAME, np.uint8), np.empty((group.size, _NAME), np.uint8)
    segment = Segment(size) if available() else None
    if segment is not None:
        mine[: len(segment.name)] = np.frombuffer(segment.name.encode(), np.uint8)
    group.all_gather(names, mine)
    regions = [] if segment is None else _mapped(segment, names)
    everybody = np.array([bool(regions)])
    group.all_reduce(everybody, "min")  # the owners may let go of their descriptors after it
    return regions if everybody[0] else []


def _mapped(own: Segment, names: Array) -> list[Array]:
    mappings = Mappings()
    found = [row.tobytes().rstrip(b"\0").decode() for row in names]
    try:
        return [own.bytes if name == own.name else mappings(name) for name in found]
    except FormatError:
        return []


class MemoryGuard(Guard, Protocol):
    """Memory does not show that its writer has died."""

    def gone(self) -> int | None:
        """A rank that has closed its connection to this one."""


class MemoryTransport:
    """Moves whole arrays between the ranks of one group; arrays are flat and contiguous."""

    def __init__(
        self,
        rank: int,
        regions: Sequence[Array],
        synchronize: Callable[[], None],
        guard: MemoryGuard,
    ) -> None:
        self._rank = rank
        self._size = len(regions)
        self._slots = [region[_HEAD:] for region in regions]
        self._counters = [memoryview(region[:8]).cast("q") for region in regions]
        self._synchronize = self._spin if CAN_SPIN else synchronize
        self._guard = guard
        self._next = 0
        self._barriers = 0
        self._since = 0.0
        self._looked = 0.0

    def _spin(self) -> None:
        """A barrier: count up, then wait until everybody has."""
        self._barriers += 1
        self._counters[self._rank][0] = self._barriers
        self.wait(self._behind)

    def _behind(self) -> list[int]:
        return [r for r, counter in enumerate(self._counters) if counter[0] < self._barriers]

    def wait(self, late: Callable[[], list[int]]) -> None:
        """Yield the processor until memory shows that no rank is late."""
        yields = 0
        while late():
            os.sched_yield()
            yields += 1
            if yields % 64 == 0:
                self._linger(late)
        self._since = 0.0

    def _linger(self, late: Callable[[], list[int]]) -> None:
        """After a long wait sleep between looks, and check that everybody is alive."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > _BRISK:
            time.sleep(0.0005)
            if now - self._looked > _LOOK:
                self._looked = now
                # A rank that is no longer late may leave: ask who is late after `gone`.
                gone = self._guard.gone()
                if (ranks := late()) and gone is not None:
                    raise self._guard.lost(gone)
                self._guard.check(ranks)

    # -- the stages --------------------------------------------------------------------------
    def _run(self, count: int, step: int, stages: Sequence[Stage]) -> None:
        """Run the stages over windows of `step` elements, each one window behind the last."""
        ranges = [(begin, min(begin + step, count)) for begin in range(0, count, step)]
        last = len(ranges) + len(stages) - 2
        for turn in range(last + 1):
            for lag, stage in enumerate(stages):
                if 0 <= turn - lag < len(ranges):
                    stage((self._next + turn - lag) % _SLOTS, ranges[turn - lag])
            if turn < last:
                self._synchronize()
        self._next += len(ranges)

    def _slot(self, owner: int, slot: int, dtype: object) -> Array:
        """Slot `slot` of `owner`'s region, as elements."""
        return self._slots[owner][slot * _SLOT : (slot + 1) * _SLOT].view(dtype)

    def _part(self, part: int, size: int) -> slice:
        return slice(size * part // self._size, size * (part + 1) // self._size)

    # -- the collectives ---------------------------------------------------------------------
    def all_reduce(self, flat: Array, op: str) -> None:
        def fill(slot: int, where: Range) -> None:
            window, mine = flat[slice(*where)], self._slot(self._rank, slot, flat.dtype)
            own = self._part(self._rank, window.size)  # only this rank adds it: it stays
            mine[: own.start] = window[: own.start]
            mine[own.stop : window.size] = window[own.stop :]

        def work(slot: int, where: Range) -> None:
            window = flat[slice(*where)]
            part = self._part(self._rank, window.size)
            inputs = [self._slot(r, slot, flat.dtype)[part] for r in range(self._size)]
            inputs[self._rank] = window[part]
            result = self._slot(self._rank, slot, flat.dtype)[part]
            fold(op, inputs, window[part], copy=result)

        def take(slot: int, where: Range) -> None:
            window = flat[slice(*where)]
            for owner in range(self._size):
                if owner != self._rank:
                    part = self._part(owner, window.size)
                    window[part] = self._slot(owner, slot, flat.dtype)[part]

        self._run(flat.size, _SLOT // flat.itemsize, [fill, work, take])

    def reduce(self, flat: Array, op: str, root: int) -> None:
        self.reduce_parts(flat, op, all_at(root, flat.size, self._size))

    def reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        """Part r = flat[bounds[r] : bounds[r + 1]] at rank r."""
        first, end = bounds[self._rank], bounds[self._rank + 1]

        def fill(slot: int, where: Range) -> None:
            window, mine = flat[slice(*where)], self._slot(self._rank, slot, flat.dtype)
            own = _within(where, first, end)  # only this rank adds it: it stays
            mine[: own.start] = window[: own.start]
            mine[own.stop : window.size] = window[own.stop :]

        def work(slot: int, where: Range) -> None:
            own, window = _within(where, first, end), flat[slice(*where)]
            inputs = [self._slot(r, slot, flat.dtype)[own] for r in range(self._size)]
            inputs[self._rank] = window[own]
            fold(op, inputs, window[own])

        self._run(flat.size, _SLOT // flat.itemsize, [fill, work])

    def broadcast(self, flat: Array, root: int) -> None:
        def fill(slot: int, where: Range) -> None:
            if self._rank == root:
                self._put(slot, flat[slice(*where)])

        def take(slot: int, where: Range) -> None:
            if self._rank != root:
                flat[slice(*where)] = self._get(root, slot, where, flat.dtype)

        self._run(flat.size, _SLOT // flat.itemsize, [fill, take])

    def all_gather(self, rows: Array, flat: Array) -> None:
        self.gather(rows, flat, self._rank)

    def reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        step = max(1, _SLOT // (flat.itemsize * self._size))

        def work(slot: int, where: Range) -> None:
            width = where[1] - where[0]
            cut = slice(self._rank * width, (self._rank + 1) * width)
            inputs = [self._slot(r, slot, flat.dtype)[cut] for r in range(self._size)]
            fold(op, inputs, flat[slice(*where)])

        self._run(flat.size, step, [self._row_filler(rows), work])

    def gather(self, rows: Array | None, flat: Array, root: int) -> None:
        def take(slot: int, where: Range) -> None:
            if rows is not None:
                for owner in range(self._size):
                    rows[owner, slice(*where)] = self._get(owner, slot, where, flat.dtype)

        self._run(flat.size, _SLOT // flat.itemsize, [self._filler(flat), take])

    def scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        step = max(1, _SLOT // (flat.itemsize * self._size))

        def take(slot: int, where: Range) -> None:
            width = where[1] - where[0]
            cut = slice(self._rank * width, (self._rank + 1) * width)
            flat[slice(*where)] = self._slot(root, slot, flat.dtype)[cut]

        fill = _skip if rows is None else self._row_filler(rows)
        self._run(flat.size, step, [fill, take])

    # -- what stages share -------------------------------------------------------------------
    def _put(self, slot: int, window: Array) -> None:
        self._slot(self._rank, slot, window.dtype)[: window.size] = window

    def _get(self, owner: int, slot: int, where: Range, dtype: object) -> Array:
        return self._slot(owner, slot, dtype)[: where[1] - where[0]]

    def _filler(self, flat: Array) -> Stage:
        return lambda slot, where: self._put(slot, flat[slice(*where)])

    def _row_filler(self, rows: Array) -> Stage:
        def fill(slot: int, where: Range) -> None:
            self._put(slot, rows[:, slice(*where)].reshape(-1))

        return fill


def _within(where: Range, first: int, end: int) -> slice:
    """What a range has of [first, end), from the range's begin."""
    begin, stop = where
    return slice(min(max(first, begin), stop) - begin, min(max(end, begin), stop) - begin)


def _skip(slot: int, where: Range) -> None:
    """A rank that contributes nothing."""
