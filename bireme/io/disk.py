"""All file system changes of checkpoints, in one place so that tests can make each of them fail."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from bireme.arrays.namespaces import Array

__all__ = ["Disk"]


class Disk:
    """The real file system; every method returns after the change is durable."""

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, pieces: "Iterable[bytes | memoryview | Array]") -> None:
        """Write a new file from these buffers."""
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def sync(self, folder: Path) -> None:
        """Make the directory's entries durable."""
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
