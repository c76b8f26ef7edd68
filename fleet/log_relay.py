"""What a process prints, on its way to a log: copied by its parent, as it is or as lines of JSON.

A full disk ends neither of them: bytes are counted instead of written. The file uses the standard
library alone.
"""

import contextlib
import datetime
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["BEGIN", "LogFile", "Relay", "as_json"]

BEGIN = '{"time": "'  # of a line that is JSON already
PART = 1 << 16  # bytes that are read at once
LONGEST_LINE = 1 << 20  # bytes; a longer one is cut into several


def as_json(now: float, message: str, **known: Any) -> str:
    """A message as a line; `now` is in seconds since 1970."""
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    stamp = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": stamp, **known, "message": message}, ensure_ascii=False)


class LogFile(io.FileIO):
    """Appends to a file, unbuffered. The first write that fails is reported by `cut`, with the
    reason; as soon as one succeeds again, a line says how many bytes are missing before it.
    """

    def __init__(
        self, file: str | os.PathLike[str] | int, cut: Callable[[str], None], closefd: bool = True
    ) -> None:
        super().__init__(file, "ab", closefd)
        self._cut = cut
        self._missing = 0
        self._reason = ""

    def write(self, data: Any) -> int:
        """Take all of `data`, a buffer, whether it can be written or not."""
        rest = memoryview(data).cast("B")
        size = rest.nbytes
        try:
            if self._missing:
                self._write_all(self._mark())
                self._missing = 0
            self._write_all(rest)
        except OSError as error:
            self._lose(size, error)
        return size

    def _write_all(self, data: "memoryview | bytes") -> None:
        rest = memoryview(data)
        while rest.nbytes:
            rest = rest[super().write(rest) or rest.nbytes :]

    def _mark(self) -> bytes:
        return f"\nbireme: {self._missing} bytes of this log are missing: {self._reason}\n".encode()

    def _lose(self, size: int, error: OSError) -> None:
        self._missing += size
        if not self._reason:
            self._reason = error.strerror or type(error).__name__
            with contextlib.suppress(Exception):
                self._cut(self._reason)


class Relay:
    """Copies what a child process prints to this one's own stdout and stderr: with `fields`, line
    by line, as JSON that has them. If both are one file, lines keep their order.
    """

    def __init__(self, cut: Callable[[str], None], fields: Mapping[str, Any] | None) -> None:
        self._fields = fields
        out = os.pipe()
        err = out if os.path.sameopenfile(1, 2) else os.pipe()
        self.writers = out[1], err[1]
        self._logs = {
            reader: LogFile(target, cut, closefd=False)
            for target, (reader, _) in ((2, err), (1, out))
        }
        self._rests = dict.fromkeys(self._logs, b"")
        self._pid = 0
        for reader in self._logs:
            os.set_blocking(reader, False)

    @property
    def readers(self) -> list[int]:
        """The descriptors to wait for; none once all writers have closed them."""
        return list(self._logs)

    def enter_child(self) -> None:
        """This is the child: what it prints goes to the parent."""
        for number, writer in zip((1, 2), self.writers, strict=True):
            os.dup2(writer, number)
        for descriptor in {*self._logs, *self.writers}:
            os.close(descriptor)

    def enter_parent(self, child: int) -> None:
        """This is the parent of `child`."""
        self._pid = child
        for writer in set(self.writers):
            os.close(writer)

    def copy(self, reader: int) -> bool:
        """Copy a part; False if there is no more now."""
        try:
            data = os.read(reader, PART)
        except BlockingIOError:
            return False
        if not data:
            self._close(reader)
        elif self._fields is None:
            self._logs[reader].write(data)
        else:
            *lines, rest = (self._rests[reader] + data).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            self._rests[reader] = rest
            self._logs[reader].write(b"".join(map(self._as_json, lines)))
        return bool(data)

    def _close(self, reader: int) -> None:
        log, rest = self._logs.pop(reader), self._rests.pop(reader)
        if rest:
            log.write(self._as_json(rest))
        os.close(reader)

    def _as_json(self, line: bytes) -> bytes:
        """A line as JSON, unless it is; a record of the child may follow the begin of a line."""
        text = line.decode(errors="replace")
        begin = text.find(BEGIN)
        record = text[begin:] if begin >= 0 and _is_record(text[begin:]) else ""
        plain = text.removesuffix(record)
        known = {"level": "info", **(self._fields or {}), "pid": self._pid}
        wrapped = as_json(time.time(), plain, **known) if plain or not record else ""
        return "".join(f"{each}\n" for each in (wrapped, record) if each).encode()

    def finish(self) -> None:
        """Copy what has been printed, and no more."""
        for reader in self.readers:
            while self.copy(reader):
                pass
            if reader in self._logs:  # a process that cannot be killed holds the other end
                self._close(reader)


def _is_record(text: str) -> bool:
    try:
        return "message" in json.loads(text)
    except ValueError:
        return False
