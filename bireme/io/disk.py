"""Every operation by which a checkpoint changes a disk, in one place, so that each may be made to
fail.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from bireme.runtime.arrays import Array

__all__ = ["Disk"]


class Disk:
    """The operating system's; what returns is on the disk, not only on its way."""

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, pieces: "Iterable[bytes | memoryview | Array]") -> None:
        """A new file of these pieces."""
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def sync(self, folder: Path) -> None:
        """Make the names in a folder last."""
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
