"""Shared memory between processes of one host: segments that one process writes and others map.

A segment is anonymous memory (memfd); its name says through which process it can be opened, so
the kernel frees it with the last process that maps it, and a killed process leaves nothing
behind. It is sealed against shrinking: a reader of memory that was cut would die of SIGBUS. The
file knows bytes, no messages.
"""

import fcntl
import mmap
import os
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError

__all__ = ["ALIGN", "Arena", "Mappings", "Place", "Segment", "aligned", "available"]

ALIGN = 64  # bytes: a cache line
SMALLEST = 1 << 20  # bytes of an arena's segment
MAX_CACHED_VIEWS = 64  # per segment
_LABEL = "bireme"
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def available() -> bool:
    """Whether this system has anonymous memory that can be sealed."""
    return hasattr(os, "memfd_create") and bool(_SEALS)


class Place(NamedTuple):
    """Where a payload lies: a segment's name, and the payload's first byte in it."""

    segment: str
    offset: int


def aligned(size: int) -> int:
    """`size`, rounded up to where the next tensor may begin."""
    return -(-size // ALIGN) * ALIGN


class Segment:
    """Shared memory of this process; `bytes` is the uint8 array that others map."""

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create(_LABEL, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self.bytes: Array = np.frombuffer(mmap.mmap(self._fd, size), np.uint8)
        self.name = f"{os.getpid()}:{self._fd}:{os.fstat(self._fd).st_ino}:{size}"

    def __del__(self) -> None:
        if (fd := getattr(self, "_fd", None)) is not None:
            os.close(fd)


class Mappings:
    """Other processes' segments, mapped read-only when first named."""

    def __init__(self) -> None:
        self._maps: dict[str, Array] = {}
        self._views: dict[str, dict[Any, Any]] = {}

    def __call__(self, name: str) -> Array:
        """The bytes of a segment.

        Raises:
            FormatError: this process cannot map it.
        """
        if name not in self._maps:
            self._maps = {old: array for old, array in self._maps.items() if _alive(old)}
            try:
                self._maps[name] = _map(name)
            except (OSError, ValueError) as error:
                raise FormatError(f"cannot map shared memory '{name}': {error}") from None
        return self._maps[name]

    def views(self, name: str) -> tuple[Array, dict[Any, Any]]:
        """The bytes of a segment, and a cache of views of them for the caller to fill."""
        memory = self(name)
        known = self._views.get(name)
        if known is None:
            self._views = {old: kept for old, kept in self._views.items() if old in self._maps}
            known = self._views[name] = {}
        elif len(known) > MAX_CACHED_VIEWS:
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
        raise ValueError("not a segment of bireme's")
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
        if found.st_ino != inode or found.st_size < size or size <= 0:
            raise ValueError("the segment was replaced")
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise ValueError("the segment is not sealed against shrinking")
        return np.frombuffer(mmap.mmap(opened, size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(opened)


class Arena:
    """Memory to send from: taken piece by piece, freed all at once."""

    def __init__(self) -> None:
        self._segments = [Segment(SMALLEST)]
        self._used = 0

    @property
    def name(self) -> str:
        """The name of one of its segments, for a peer to try to map."""
        return self._segments[-1].name

    def take(self, size: int) -> tuple[Place, Array]:
        """`size` bytes that stay valid until `clear`."""
        if self._used + size > len(self._segments[-1].bytes):
            held = sum(len(segment.bytes) for segment in self._segments)
            self._segments.append(Segment(max(SMALLEST, size, held)))
            self._used = 0
        segment, offset = self._segments[-1], self._used
        self._used += aligned(size)
        return Place(segment.name, offset), segment.bytes[offset : offset + size]

    def clear(self) -> None:
        """Free everything; several segments become one of their total size."""
        if len(self._segments) > 1:
            self._segments = [Segment(sum(len(segment.bytes) for segment in self._segments))]
        self._used = 0
