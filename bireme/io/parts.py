"""One process's part of a checkpoint: a folder with raw arrays in `data`, and `manifest.json`.

The manifest begins with the SHA-256 of the rest of it, and holds for every array its place and
CRC-32. A part is written under another name and renamed when all of it is on the disk. The file
knows bytes and names, not what they mean to a program.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bireme.errors import FormatError
from bireme.runtime.arrays import Array

from .disk import Disk

__all__ = ["Part", "Piece", "write_part"]

FORMAT = 1
DATA, MANIFEST = "data", "manifest.json"
_READ = 1 << 22  # bytes that are read and checked at once


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `begin`... of a variable of `height` rows (None: all of it, whatever its shape).

    Rows with `ids` belong to a table: row i of the array is row ids[i] of the variable.
    """

    name: str
    array: Array
    begin: int = 0
    height: int | None = None
    ids: Array | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What the manifest says of one array, or of the ids that stand before it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    crc: int
    begin: int = 0
    height: int | None = None
    ids: "Entry | None" = field(default=None)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        found = {key: getattr(self, key) for key in self.__slots__ if key != "ids"}
        return found if self.ids is None else {**found, "ids": self.ids.plain()}


# -- writing -----------------------------------------------------------------------------------
def write_part(disk: Disk, folder: Path, head: Mapping[str, Any], pieces: Sequence[Piece]) -> int:
    """Write a part that appears whole or not at all; its size in bytes.

    A part that is there already is left alone.
    """
    if folder.exists():
        return 0
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    disk.remove(draft)
    disk.make(draft)
    arrays = [np.asarray(array, order="C") for piece in pieces for array in _arrays(piece)]
    entries = list(_entries(pieces, iter(arrays)))
    size = sum(array.nbytes for array in arrays)
    disk.write(draft / DATA, (array.reshape(-1).view(np.uint8).data for array in arrays))
    said = {**head, "format": FORMAT, "size": size, "tensors": [e.plain() for e in entries]}
    text = json.dumps(said, indent=1).encode()
    disk.write(draft / MANIFEST, [_digest(text), b"\n", text])
    disk.sync(draft)
    disk.rename(draft, folder)
    disk.sync(folder.parent)
    return size


def _arrays(piece: Piece) -> Iterator[Array]:
    if piece.ids is not None:
        yield piece.ids
    yield piece.array


def _entries(pieces: Iterable[Piece], arrays: Iterator[Array]) -> Iterator[Entry]:
    at = 0

    def described(name: str, **more: Any) -> Entry:
        nonlocal at
        array = next(arrays)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8).data)
        entry = Entry(name, array.dtype.name, tuple(array.shape), at, crc, **more)
        at += array.nbytes
        return entry

    for piece in pieces:
        ids = described(f"{piece.name} (ids)") if piece.ids is not None else None
        yield described(piece.name, begin=piece.begin, height=piece.height, ids=ids)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


# -- reading -----------------------------------------------------------------------------------
class Part:
    """A part that was written, with its manifest read and checked.

    Raises:
        FormatError: the manifest is damaged, of a later format, or `data` has another size.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head = self._manifest()
        self.entries = [_entry(each) for each in self.head.pop("tensors")]
        path = folder / DATA
        found = path.stat().st_size if path.exists() else -1
        if found != self.head["size"]:
            problem = "is missing" if found < 0 else f"has {found} bytes"
            last = next((e for e in self.entries if e.at + e.nbytes > found), None)
            raise _damaged(path, f"{problem}, not {self.head['size']}", last.name if last else None)

    def _manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            digest, _, text = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise _damaged(path, f"cannot be read: {error.strerror}") from None
        if digest != _digest(text):
            raise _damaged(path, "does not have the checksum that it begins with")
        said: dict[str, Any] = json.loads(text)
        if said["format"] != FORMAT:
            raise FormatError(
                f"a checkpoint of format {said['format']}; this version reads {FORMAT}",
                where=str(path),
                hint="load it with the version that saved it",
            )
        return said

    def check(self) -> None:
        """Read everything once.

        Raises:
            FormatError: an array's bytes have changed since they were saved.
        """
        for entry in self.entries:
            for each in (entry, entry.ids):
                if each is not None:
                    crc = 0
                    for block in self._blocks(each):
                        crc = zlib.crc32(block, crc)
                    self._compare(each, crc)

    def read(self, entry: Entry) -> Array:
        """An array.

        Raises:
            FormatError: its bytes have changed since they were saved.
        """
        data = b"".join(self._blocks(entry))
        self._compare(entry, zlib.crc32(data))
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)

    def _blocks(self, entry: Entry) -> Iterator[bytes]:
        with open(self.folder / DATA, "rb") as file:
            file.seek(entry.at)
            left = entry.nbytes
            while left > 0 and (block := file.read(min(left, _READ))):
                left -= len(block)
                yield block

    def _compare(self, entry: Entry, crc: int) -> None:
        if crc != entry.crc:
            raise _damaged(
                self.folder / DATA, f"is damaged: bytes {entry.at}... have changed", entry.name
            )


def _entry(said: dict[str, Any]) -> Entry:
    ids = said.pop("ids", None)
    said["shape"] = tuple(said["shape"])
    return Entry(**said, ids=None if ids is None else _entry(ids))


def _damaged(path: Path, problem: str, tensor: str | None = None) -> FormatError:
    return FormatError(
        f"file {path.name} of a checkpoint {problem}",
        tensor=tensor,
        where=f"{path}: tensor {tensor!r}" if tensor else str(path),
        hint=f"remove {path.parent.parent} to go on from the checkpoint before it",
    )
