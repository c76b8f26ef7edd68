"""Memory in which gradients are computed and from which servers of this host read them: nothing is
copied on the way. It knows names, shapes and segments, no servers.
"""

import sys
from math import prod

import numpy as np

from bireme.rpc.shared import ALIGN, Place, Segment, aligned
from bireme.runtime.arrays import Array

__all__ = ["Rooms"]

_EACH = 2  # rooms for one variable: somebody may keep last step's gradient


class _Room:
    """One segment for one variable."""

    def __init__(self, size: int) -> None:
        self.segment = Segment(aligned(size) + ALIGN)
        self.address = self.segment.bytes.ctypes.data
        self._lone = sys.getrefcount(self.segment.bytes)

    @property
    def free(self) -> bool:
        """Whether nobody holds an array of it: every view refers to the segment's bytes."""
        return sys.getrefcount(self.segment.bytes) <= self._lone


class Rooms:
    """A trainer's rooms. One that is in use is not given out again."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, int], list[_Room]] = {}
        self._by_bytes: dict[int, _Room] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """An array for a variable; None if all of its rooms are in use."""
        size = prod(shape) * np.dtype(dtype).itemsize
        rooms = self._rooms.setdefault((name, size), [])
        room = next((room for room in rooms if room.free), None)
        if room is None:
            if len(rooms) >= _EACH:
                return None
            room = _Room(size)
            rooms.append(room)
            self._by_bytes[id(room.segment.bytes)] = room
        return np.ndarray(shape, dtype, room.segment.bytes)

    def place(self, array: Array) -> Place | None:
        """Where an array lies, if it lies in a room."""
        room = self._by_bytes.get(id(array.base))
        if room is None or not array.flags.c_contiguous:
            return None
        offset = array.__array_interface__["data"][0] - room.address
        return Place(room.segment.name, offset)
