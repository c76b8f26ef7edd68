"""An append-only file of records: what `append` has returned from survives any crash.

    file      "BRWL" version 0 0 0 | record | record | ...
    record    uint64 length of the body | uint32 crc of the length and the body | body

A crash may leave the last record incomplete: reading ends before it, as it was never confirmed. A
record with another checksum that complete ones follow is damage. The file knows bytes, not what
they mean.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from bireme.errors import FormatError

from .disk import Disk

__all__ = ["FOLDER", "LogReader", "LogWriter"]

FOLDER = "write-ahead"  # below FLAGS_checkpoint_dir: what the processes of a job record

_FILE_HEAD = b"BRWL\x01\0\0\0"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD = _LENGTH.size + _CRC.size
_MOST_DAMAGED = 1000  # records in a row among which a complete one is looked for


class LogWriter:
    """A new log.

    Raises:
        OSError: the disk refuses; so do all methods.
    """

    def __init__(self, disk: Disk, path: Path, first: Sequence[bytes | memoryview]) -> None:
        """Create the file with its `first` record; it is durable, and so is its name."""
        self.path = path
        self.size = 0  # bytes of all records
        self._disk = disk
        disk.write(path, [_FILE_HEAD, *self._framed(first)])
        disk.sync(path.parent)
        self._file = disk.open_end(path)

    def append(self, body: Sequence[bytes | memoryview]) -> None:
        """Add a record; it is durable on return."""
        self._disk.append(self._file, self._framed(body))

    def _framed(self, body: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        length = _LENGTH.pack(sum(len(part) for part in body))
        crc = zlib.crc32(length)
        for part in body:
            crc = zlib.crc32(part, crc)
        parts: list[bytes | memoryview] = [length + _CRC.pack(crc), *body]
        self.size += sum(map(len, parts))
        return parts

    def close(self) -> None:
        self._file.close()


class LogReader:
    """The complete records of a log, in order; `end` is where the last of them ends.

    Raises (when iterated):
        OSError: the file cannot be read.
        FormatError: it is damaged before its end, or is not a log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.end = 0

    @property
    def is_complete(self) -> bool:
        """Whether all of the file has been read."""
        return self.end == self.size

    def __iter__(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            head = file.read(len(_FILE_HEAD))
            if head != _FILE_HEAD:
                if head.strip(b"\0") and not _FILE_HEAD.startswith(head):
                    raise self._damaged(0)
                return
            self.end = len(_FILE_HEAD)
            while (found := self._record(file, self.end)) is not None:
                end, body = found
                if body is None:
                    self._check_rest(file, end)
                    return
                self.end = end
                yield body

    def _record(self, file: BinaryIO, at: int) -> tuple[int, bytes | None] | None:
        """Where the record at this place ends, and its body if it has its checksum; None if the
        file ends before.
        """
        if at + _HEAD > self.size:
            return None
        file.seek(at)
        length, (crc,) = file.read(_LENGTH.size), _CRC.unpack(file.read(_CRC.size))
        (size,) = _LENGTH.unpack(length)
        if size > self.size - at - _HEAD:
            return None
        body = file.read(size)
        return at + _HEAD + size, body if zlib.crc32(body, zlib.crc32(length)) == crc else None

    def _check_rest(self, file: BinaryIO, at: int) -> None:
        """A crash leaves nothing complete after what it has left incomplete."""
        for _ in range(_MOST_DAMAGED):
            found = self._record(file, at)
            if found is None:
                return
            at, body = found
            if body is not None:
                raise self._damaged(self.end)

    def _damaged(self, at: int) -> FormatError:
        return FormatError(
            f"file {self.path.name} of a record is damaged: bytes {at}... have changed",
            where=str(self.path),
            hint=f"remove {self.path.parent} to resume the job from its newest checkpoint",
        )
