"""An append-only file of records: what `append` has returned from survives any crash.

    file      "BRWL" version 0 0 0 | record | record | ...
    record    uint64 length of the body | uint32 crc of the length and the body | body

A crash may leave the last record incomplete. Reading ends before the first record that is short or
has another checksum: nobody was told of it. The file knows bytes, not what they mean.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from .disk import Disk

__all__ = ["FOLDER", "LogWriter", "read_log"]

FOLDER = "write-ahead"  # below FLAGS_checkpoint_dir: what the processes of a job record

_FILE_HEAD = b"BRWL\x01\0\0\0"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD = _LENGTH.size + _CRC.size


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


def read_log(path: Path) -> Iterator[bytes]:
    """The complete records of a log, in order.

    Raises:
        OSError: the file cannot be read.
    """
    left = path.stat().st_size - len(_FILE_HEAD)
    with open(path, "rb") as file:
        if file.read(len(_FILE_HEAD)) != _FILE_HEAD:
            return
        while left >= _HEAD:
            length, (crc,) = file.read(_LENGTH.size), _CRC.unpack(file.read(_CRC.size))
            (size,) = _LENGTH.unpack(length)
            left -= _HEAD + size
            if left < 0:
                return
            body = file.read(size)
            if zlib.crc32(body, zlib.crc32(length)) != crc:
                return
            yield body
