"""A log that never ends what writes to it: on a full disk, bytes are counted instead of written."""

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any

__all__ = ["LogFile"]


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
