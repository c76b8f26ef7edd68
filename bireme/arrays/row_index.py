"""Ids to slots: the position of a growing table's row in its array.

An open-addressing hash of slot numbers, with the ids stored in slot order. Operations are
vectorised: one iteration of a loop is one probe for all ids still unresolved.
"""

import numpy as np

from .growable import Room, fresh
from .namespaces import Array

__all__ = ["FIRST", "Index"]

FIRST = 1 << 10  # initial capacity in slots; it doubles from here
_PLACED = 1 << 16  # ids inserted at once; bounds the memory of temporaries
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FREE = np.int32(-1)


class Index:
    """Maps ids to slots in order of insertion; slots are never freed.

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
        """The number of ids that fit; a power of two."""
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        return int(self._ids.nbytes + self._hash.nbytes)

    def find(self, ids: Array) -> Array:
        """The slot of each id, or -1."""
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
        """The slot of each id; new ids take the next slots in ascending order."""
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
        """Insert the slots from `begin` on into the hash."""
        for start in range(begin, self.count, _PLACED):
            slots = np.arange(start, min(start + _PLACED, self.count), dtype=np.int32)
            at, step = self._way(self._ids[slots])
            while slots.size:
                free = self._hash[at] == _FREE
                self._hash[at[free]] = slots[free]  # if several ids want one entry, the last wins
                beaten = np.flatnonzero(self._hash[at] != slots)
                slots, step = slots[beaten], step[beaten]
                at = (at[beaten] + step) & (len(self._hash) - 1)

    def _way(self, ids: Array) -> tuple[Array, Array]:
        """First probe and probe step of each id."""
        words = ids.astype(np.uint64)
        words ^= words >> np.uint64(32)
        words *= _ODD
        step = (words & np.uint64(0x7FFFFFFF)).astype(np.int64) | 1
        words >>= np.uint64(65 - len(self._hash).bit_length())
        return words.astype(np.int64), step
