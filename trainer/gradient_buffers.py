"""Memory in which gradients are computed and from which servers of this host read them: nothing is
copied on the way. It knows names, shapes and segments, no servers.
"""

from math import prod

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.ownership import references, shared
from bireme.net.memory import ALIGN, Place, Segment, aligned

__all__ = ["GradientBuffers"]

_EACH = 2  # buffers for one variable: somebody may keep last step's gradient


class _Buffer:
    """One segment for one variable."""

    def __init__(self, size: int) -> None:
        self.segment = Segment(aligned(size) + ALIGN)
        self.address = self.segment.bytes.ctypes.data
        self._known = references(self.segment.bytes)

    @property
    def free(self) -> bool:
        """Whether nobody holds an array of it: every view refers to the segment's bytes."""
        return not shared(self.segment.bytes, self._known)


class GradientBuffers:
    """A trainer's buffers. One that is in use is not given out again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], list[_Buffer]] = {}
        self._by_bytes: dict[int, _Buffer] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """An array for a variable; None if all of its buffers are in use."""
        size = prod(shape) * np.dtype(dtype).itemsize
        buffers = self._buffers.setdefault((name, size), [])
        buffer = next((buffer for buffer in buffers if buffer.free), None)
        if buffer is None:
            if len(buffers) >= _EACH:
                return None
            buffer = _Buffer(size)
            buffers.append(buffer)
            self._by_bytes[id(buffer.segment.bytes)] = buffer
        return np.ndarray(shape, dtype, buffer.segment.bytes)

    def place(self, array: Array) -> Place | None:
        """Where an array lies, if it lies in a buffer."""
        buffer = self._by_bytes.get(id(array.base))
        if buffer is None or not array.flags.c_contiguous:
            return None
        offset = array.__array_interface__["data"][0] - buffer.address
        return Place(buffer.segment.name, offset)
