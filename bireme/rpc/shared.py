"""Payloads between processes of one host: memory that both map, so that gRPC carries headers only.

A segment is anonymous memory (memfd); its name says through which process it can be opened, so
the kernel frees it with the last process that maps it, and a killed one leaves nothing behind.
The file knows bytes, no messages.
"""

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bireme.errors import FormatError
from bireme.runtime.arrays import Array

__all__ = ["ALIGN", "Attached", "Board", "Outbox", "Place", "Region", "Segment", "aligned"]

ALIGN = 64
SMALLEST = 1 << 20
REMEMBERED = 64  # things about one segment
_LABEL = "bireme"


class Place(NamedTuple):
    """Where a payload lies: a segment's name, and the payload's first byte in it."""

    segment: str
    offset: int


def aligned(size: int) -> int:
    """`size`, rounded up to where the next tensor may begin."""
    return -(-size // ALIGN) * ALIGN


class Segment:
    """Shared memory of this process; `bytes` is the array that others see."""

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create(_LABEL, os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self.bytes: Array = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)
        self.name = f"{os.getpid()}:{self._fd}:{os.fstat(self._fd).st_ino}:{size}"

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", None)) is not None:
            os.close(fd)


class Attached:
    """Other processes' segments, mapped for reading when first named."""

    def __init__(self) -> None:
        self._maps: dict[str, Array] = {}
        self._known: dict[str, dict[Any, Any]] = {}

    def __call__(self, name: str) -> Array:
        """The bytes of a segment.

        Raises:
            FormatError: this process cannot map it.
        """
        if name not in self._maps:
            self._maps = {old: room for old, room in self._maps.items() if _alive(old)}
            try:
                self._maps[name] = _map(name)
            except (OSError, ValueError) as error:
                raise FormatError(f"cannot map the shared memory '{name}': {error}") from None
        return self._maps[name]

    def window(self, name: str) -> tuple[Array, dict[Any, Any]]:
        """The bytes of a segment, and what its reader wants to remember about them."""
        memory = self(name)
        known = self._known.get(name)
        if known is None:
            self._known = {old: kept for old, kept in self._known.items() if old in self._maps}
            known = self._known[name] = {}
        elif len(known) > REMEMBERED:
            known.clear()
        return memory, known


def _alive(name: str) -> bool:
    """Whether its owner still holds a segment."""
    pid, fd, inode, _ = name.split(":")
    try:
        return os.stat(f"/proc/{pid}/fd/{fd}").st_ino == int(inode)
    except OSError:
        return False


def _map(name: str) -> Array:
    pid, fd, inode, size = map(int, name.split(":"))
    path = f"/proc/{pid}/fd/{fd}"
    if not os.readlink(path).startswith(f"/memfd:{_LABEL}"):
        raise ValueError("it is none of ours")
    opened = os.open(path, os.O_RDONLY)
    try:
        found = os.fstat(opened)
        if found.st_ino != inode or found.st_size < size or size <= 0:
            raise ValueError("it is another one by now")
        return np.frombuffer(mmap.mmap(opened, size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(opened)


class Outbox:
    """Memory to send from: taken piece by piece, given back all at once."""

    def __init__(self) -> None:
        self._segments = [Segment(SMALLEST)]
        self._used = 0

    @property
    def name(self) -> str:
        """A segment of it, for others to try."""
        return self._segments[-1].name

    def take(self, size: int) -> tuple[Place, Array]:
        """Room for `size` bytes that stays until `clear`."""
        if self._used + size > len(self._segments[-1].bytes):
            held = sum(len(segment.bytes) for segment in self._segments)
            self._segments.append(Segment(max(SMALLEST, size, held)))
            self._used = 0
        segment, offset = self._segments[-1], self._used
        self._used += aligned(size)
        return Place(segment.name, offset), segment.bytes[offset : offset + size]

    def clear(self) -> None:
        """Everything taken is free again; the segments become one, as large as all of them were."""
        if len(self._segments) > 1:
            self._segments = [Segment(sum(len(segment.bytes) for segment in self._segments))]
        self._used = 0


class Region:
    """Room for one publication, and who may still be reading it: trainer -> number of the call."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.readers: dict[int, int] = {}
        self.current = False
        self.place = Place("", 0)
        self.arrays: list[Array] = []
        self._lone = 0

    @property
    def free(self) -> bool:
        """Whether it may be written: nobody was told of it who has not read it, and nobody in this
        process holds one of its arrays.
        """
        return not (self.readers or self.current or self._held())

    def _held(self) -> bool:
        if not self.arrays:
            return False
        views = any(sys.getrefcount(array) > _LISTED for array in self.arrays)
        return views or sys.getrefcount(self.arrays[0].base) > self._lone

    def lay_out(self, size: int, arrays: Callable[[Array], Sequence[Array]]) -> None:
        """Take `size` bytes and cut them into arrays."""
        self.arrays = []
        self.outbox.clear()
        self.outbox.take(size)
        self.outbox.clear()
        self.place, room = self.outbox.take(size)
        self.arrays = list(arrays(room))
        del room
        self._lone = sys.getrefcount(self.arrays[0].base)


def _references_in_a_list() -> int:
    """What `sys.getrefcount` says in a loop over a list that alone holds an array."""
    return max(sys.getrefcount(array) for array in [np.empty(1)])


_LISTED = _references_in_a_list()


class Board:
    """Regions to publish in. One that is read or current is not written; readers leave by their
    next call.
    """

    def __init__(self, make: Callable[[], Region] = Region) -> None:
        self._make = make
        self._regions: list[Region] = []

    def take(self) -> Region:
        """A region that nobody reads, for the one who asks."""
        for region in self._regions:
            if region.free:
                break
        else:
            region = self._make()
            self._regions.append(region)
        region.current = True
        return region

    def heard(self, trainer: int, sequence: int) -> None:
        """A trainer makes call `sequence`: what earlier ones gave it has been read."""
        for region in self._regions:
            if region.readers.get(trainer, sequence) < sequence:
                del region.readers[trainer]

    def left(self, trainer: int) -> None:
        """A trainer will make no further call; what it was given stays as it is, for it may go on
        reading.
        """
        self._regions = [region for region in self._regions if trainer not in region.readers]
