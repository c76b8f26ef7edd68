"""Ids to slots: which place in an array a row of a growing table has.

An open hash of slot numbers beside the ids in the order of their slots. Everything works on whole
arrays of ids; a round of a loop is one probe for all ids that are still under way. The file knows
ids and numbers, no values.
"""

import numpy as np

from .arrays import Array
from .room import Room, fresh

__all__ = ["FIRST", "Index"]

FIRST = 1 << 10  # slots at the beginning; capacities double from here
_PLACED = 1 << 16  # ids placed at once, which bounds the memory of temporaries
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FREE = np.int32(-1)


class Index:
    """Each id has the slot that was next when it was added; slots are never given back.

    >>> index = Index()
    >>> index.add(np.array([70, 7, 70])).tolist(), index.find(np.array([7, 8])).tolist()
    ([1, 0, 1], [0, -1])
    """

    def __init__(self) -> None:
        self.count = 0
        self._room = Room((), np.int64, FIRST)
        self._hash = fresh(2 * FIRST, np.int32)
        self._hash.fill(_FREE)

    @property
    def _ids(self) -> Array:
        return self._room.array

    @property
    def ids(self) -> Array:
        """The ids by slot; a view."""
        return self._ids[: self.count]

    @property
    def capacity(self) -> int:
        """How many ids there is room for; a power of two."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        return int(self._ids.nbytes + self._hash.nbytes)

    def find(self, ids: Array) -> Array:
        """The slot of each id, -1 where it has none."""
        at, step = self._way(ids)
        slots = self._hash[at]
        going = np.flatnonzero((slots >= 0) & (self._ids[slots] != ids))
        at, step, wanted = at[going], step[going], ids[going]
        while going.size:
            at = (at + step) & (len(self._hash) - 1)
            slots[going] = found = self._hash[at]
            on = np.flatnonzero((found >= 0) & (self._ids[found] != wanted))
            going, at, step, wanted = going[on], at[on], step[on], wanted[on]
        return slots

    def add(self, ids: Array) -> Array:
        """The slot of each id; new ids take the next slots, in rising order."""
        slots = self.find(ids)
        missing = slots < 0
        if missing.any():
            self._append(np.unique(ids[missing]))
            slots[missing] = self.find(ids[missing])
        return slots

    def _append(self, ids: Array) -> None:
        begin, end = self.count, self.count + len(ids)
        grown = end > self.capacity
        if grown:
            self._grow(end)
        self._ids[begin:end] = ids
        self.count = end
        self._place(0 if grown else begin)

    def _grow(self, needed: int) -> None:
        capacity = self.capacity
        while capacity < needed:
            capacity *= 2
        self._room.grow(capacity, self.count)
        self._hash = fresh(2 * capacity, np.int32)
        self._hash.fill(_FREE)

    def _place(self, begin: int) -> None:
        """Write the slots from `begin` on into the hash."""
        for start in range(begin, self.count, _PLACED):
            slots = np.arange(start, min(start + _PLACED, self.count), dtype=np.int32)
            at, step = self._way(self._ids[slots])
            while slots.size:
                free = self._hash[at] == _FREE
                self._hash[at[free]] = slots[free]  # of several for one place the last stays
                beaten = np.flatnonzero(self._hash[at] != slots)
                slots, step = slots[beaten], step[beaten]
                at = (at[beaten] + step) & (len(self._hash) - 1)

    def _way(self, ids: Array) -> tuple[Array, Array]:
        """Where the search for each id begins, and how far it goes on from there each time."""
        words = ids.astype(np.uint64)
        words ^= words >> np.uint64(32)
        words *= _ODD
        step = (words & np.uint64(0x7FFFFFFF)).astype(np.int64) | 1
        words >>= np.uint64(65 - len(self._hash).bit_length())
        return words.astype(np.int64), step
