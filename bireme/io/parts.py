"""One process's part of a checkpoint: a folder with raw arrays in `data`, and `manifest.json`.

The manifest starts with the SHA-256 of its remainder and holds the offset and CRC-32 of every
array. A part is written under a temporary name and renamed once it is durable. Object stores cannot
rename a directory at once; there the manifest is written last, and a part without one is absent.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError, InvalidArgument
from bireme.paths import is_local, problem, reported

from .disk import Disk
from .manifest import FORMAT, Entry, Held, OtherFormat, Untrue, clash, parsed

__all__ = ["DATA", "Part", "Piece", "is_there", "unlist", "write_part"]

DATA, MANIFEST = "data", "manifest.json"
_READ = 1 << 22  # bytes read and verified at a time


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows from `begin` on of a variable with `height` rows (None: the whole variable, of any
    shape).

    Rows with `ids` belong to a table: row i of the array is row ids[i] of the variable.
    """

    name: str
    array: Array
    begin: int = 0
    height: int | None = None
    ids: Array | None = None


# -- writing -----------------------------------------------------------------------------------
def write_part(disk: Disk, folder: Path, head: Mapping[str, Any], pieces: Sequence[Piece]) -> int:
    """Write a part, complete or not at all; returns its size in bytes.

    An existing part is left alone. An unfinished one is removed.

    Raises:
        InvalidArgument: two of the pieces hold the same rows of a variable.
        OSError: the disk refuses.
    """
    _refuse_overlap(folder.name, pieces)
    if is_there(folder):
        return 0
    local = is_local(folder)
    draft = folder.with_name(f".{folder.name}.{os.getpid()}") if local else folder
    disk.remove(draft)
    try:
        size = _write(disk, draft, head, pieces, MANIFEST if local else f".{MANIFEST}")
        if local:
            disk.rename(draft, folder)
        else:
            disk.rename(folder / f".{MANIFEST}", folder / MANIFEST)
    except OSError:
        disk.remove(draft)  # after a failure, do not fill the disk further
        raise
    disk.sync(folder.parent)
    return size


def is_there(folder: Path) -> bool:
    """Whether a part was written to its end."""
    with reported():
        return folder.exists() if is_local(folder) else (folder / MANIFEST).exists()


def unlist(disk: Disk, folder: Path) -> None:
    """Make a part on a remote file system absent, by its manifest."""
    disk.remove(folder / MANIFEST)


def _write(
    disk: Disk, draft: Path, head: Mapping[str, Any], pieces: Sequence[Piece], manifest: str
) -> int:
    disk.make(draft)
    arrays = [np.asarray(array, order="C") for piece in pieces for array in _arrays(piece)]
    entries = list(_entries(pieces, iter(arrays)))
    size = sum(array.nbytes for array in arrays)
    disk.write(draft / DATA, (array.reshape(-1).view(np.uint8).data for array in arrays))
    said = {**head, "format": FORMAT, "size": size, "tensors": [e.plain() for e in entries]}
    text = json.dumps(said, indent=1).encode()
    disk.write(draft / manifest, [_digest(text), b"\n", text])
    disk.sync(draft)
    return size


def _refuse_overlap(part: str, pieces: Sequence[Piece]) -> None:
    held: dict[str, list[Held]] = {}
    for piece in pieces:
        array, by_id = piece.array, piece.ids is not None
        place = (piece.begin, piece.height, by_id)
        held.setdefault(piece.name, []).append(Held(part, array.dtype.name, array.shape, *place))
        if piece.ids is not None and len(np.unique(piece.ids)) < len(piece.ids):
            raise _twice(piece.name, f"{part} holds an id more than once")
    for name, each in held.items():
        tables = sum(one.by_id for one in each)
        if fault := clash(each) or (f"{part} holds it twice" if tables > 1 else None):
            raise _twice(name, fault)


def _twice(name: str, fault: str) -> InvalidArgument:
    return InvalidArgument(
        f"variable {name!r} cannot be saved: {fault}",
        hint="every row must have exactly one owner: was the program changed after transpile()?",
    )


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
    """A written part, with its manifest read and verified.

    Raises:
        FormatError: the manifest is damaged, of a later format, or `data` has another size.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head, self.entries = self._manifest()
        path = folder / DATA
        try:
            with reported():
                found = path.stat().st_size if path.exists() else -1
        except OSError as error:
            raise _damaged(path, f"cannot be read: {problem(error)}") from None
        if found != self.head["size"]:
            fault = "is missing" if found < 0 else f"has {found} bytes"
            last = next((e for e in self.entries if e.at + e.nbytes > found), None)
            raise _damaged(path, f"{fault}, not {self.head['size']}", last.name if last else None)

    def _manifest(self) -> tuple[dict[str, Any], list[Entry]]:
        path = self.folder / MANIFEST
        try:
            with reported():
                digest, _, text = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise _damaged(path, f"cannot be read: {problem(error)}") from None
        if digest != _digest(text):
            raise _damaged(path, "does not have the checksum that it begins with")
        try:
            return parsed(text)
        except Untrue as untrue:
            raise _damaged(path, str(untrue)) from None
        except OtherFormat as other:
            raise FormatError(
                f"a checkpoint of format {other}; this version reads {FORMAT}",
                where=str(path),
                hint="load it with the version that saved it",
            ) from None

    def check(self) -> None:
        """Verify the checksums of all arrays.

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
        """Read an array.

        Raises:
            FormatError: its bytes have changed since they were saved.
        """
        data = b"".join(self._blocks(entry))
        self._compare(entry, zlib.crc32(data))
        return np.frombuffer(data, entry.dtype).reshape(entry.shape)

    def held(self, entry: Entry) -> Held:
        """The share of a variable in this part."""
        place = (entry.begin, entry.height, entry.ids is not None)
        return Held(self.folder.name, entry.dtype, entry.shape, *place)

    def _blocks(self, entry: Entry) -> Iterator[bytes]:
        path = self.folder / DATA
        try:
            with reported(), path.open("rb") as file:
                file.seek(entry.at)
                left = entry.nbytes
                while left > 0 and (block := file.read(min(left, _READ))):
                    left -= len(block)
                    yield block
        except OSError as error:
            raise _damaged(path, f"cannot be read: {problem(error)}", entry.name) from None

    def _compare(self, entry: Entry, crc: int) -> None:
        if crc != entry.crc:
            raise _damaged(
                self.folder / DATA, f"is damaged: bytes {entry.at}... have changed", entry.name
            )


def _damaged(path: Path, fault: str, tensor: str | None = None) -> FormatError:
    return FormatError(
        f"file {path.name} of a checkpoint {fault}",
        tensor=tensor,
        where=f"{path}: tensor {tensor!r}" if tensor else str(path),
        hint=f"remove {path.parent.parent} to resume from the previous checkpoint",
    )
