"""All file system changes of checkpoints, in one place so that tests can make each of them fail."""

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from bireme.arrays.namespaces import Array
from bireme.paths import is_local, remove_tree, rename, reported

__all__ = ["Disk", "UnsyncedDisk"]

_AT_ONCE = 64  # buffers handed to one system call


class Disk:
    """The real file system, local or remote; every method returns after the change is durable."""

    def make(self, folder: Path) -> None:
        with reported():
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, pieces: "Iterable[bytes | memoryview | Array]") -> None:
        """Write a new file from these buffers."""
        with reported(), path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            if is_local(path):
                file.flush()
                self._sync(file.fileno())

    def open_end(self, path: Path) -> BinaryIO:
        """A file to append to."""
        return open(path, "ab", buffering=0)

    def append(self, file: BinaryIO, pieces: "Iterable[bytes | memoryview]") -> None:
        """Add these buffers to a file."""
        left = deque(memoryview(piece).cast("B") for piece in pieces if len(piece))
        while left:
            size = os.writev(file.fileno(), [*left][:_AT_ONCE])
            while left and size >= len(left[0]):
                size -= len(left.popleft())
            if size:
                left[0] = left[0][size:]
        os.fdatasync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or directory; on an object store, a copy of each object, then a removal."""
        with reported():
            rename(old, new)

    def sync(self, folder: Path) -> None:
        """Make the directory's entries durable."""
        if not is_local(folder):
            return
        number = os.open(folder, os.O_RDONLY)
        try:
            self._sync(number)
        finally:
            os.close(number)

    def _sync(self, number: int) -> None:
        os.fsync(number)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove(self, folder: Path) -> None:
        remove_tree(folder)


class UnsyncedDisk(Disk):
    """Changes survive this process, and not a crash of its host."""

    def _sync(self, number: int) -> None:
        pass
