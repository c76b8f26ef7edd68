"""Arrays that grow at their end in place, using `mremap`.

Untouched memory is not resident, so capacity can double at no cost.
"""

import mmap
from math import prod

import numpy as np

from .namespaces import Array

__all__ = ["Room", "fresh"]

_PRIVATE = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)


def _mapped(size: int) -> mmap.mmap:
    size = max(size, 1)
    return mmap.mmap(-1, size, flags=_PRIVATE) if _PRIVATE else mmap.mmap(-1, size)


def fresh(count: int, dtype: Array) -> Array:
    """A zeroed array whose memory is unmapped as a whole when it is released."""
    kind = np.dtype(dtype)
    return np.frombuffer(_mapped(count * kind.itemsize), kind, count)


class Room:
    """Rows of one shape; `array` is the whole capacity, of which the owner tracks the used part."""

    def __init__(self, row: tuple[int, ...], dtype: Array, rows: int = 0) -> None:
        self._row, self._dtype = row, np.dtype(dtype)
        self._memory = _mapped(self._size(rows))
        self.array: Array = self._view(rows)

    def _size(self, rows: int) -> int:
        return rows * prod(self._row) * self._dtype.itemsize

    def _view(self, rows: int) -> Array:
        flat = np.frombuffer(self._memory, self._dtype, rows * prod(self._row))
        return flat.reshape(rows, *self._row)

    def grow(self, rows: int, used: int) -> None:
        """Grow the capacity to hold so many rows; the first `used` are kept."""
        if not self._stretched(rows):
            old, self._memory = self.array, _mapped(self._size(rows))
            self.array = self._view(rows)
            self.array[:used] = old[:used]

    def _stretched(self, rows: int) -> bool:
        """Whether the memory can grow in place; not while another array refers to it."""
        had = len(self.array)
        self.array = None
        try:
            self._memory.resize(max(1, self._size(rows)))
        except (BufferError, OSError, SystemError, ValueError):
            self.array = self._view(had)
            return False
        self.array = self._view(rows)
        return True
