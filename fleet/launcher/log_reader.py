"""Reads a log while it grows."""

import codecs
from pathlib import Path

from bireme.paths import beginning_of

from ..log_lines import texts_of
from .log_folder import opened

__all__ = ["LogReader"]

CHUNK = 1 << 16  # bytes held at a time; a longer line is cut into several


class LogReader:
    """The lines of a log from `begin` on, in parts of bounded size."""

    def __init__(self, log: Path, begin: int = 0) -> None:
        self._file = opened(beginning_of, log)
        self._file.seek(begin)

    def lines(self, last: bool = False) -> list[str]:
        """The next lines, none if there are no more; an unfinished one only if `last`."""
        start = self._file.tell()
        data = self._file.read(CHUNK)
        whole = data.rfind(b"\n") + 1
        full = len(data) == CHUNK
        if not whole if full else last:
            whole = len(data)
        text, used = codecs.utf_8_decode(data[:whole], "replace", not full)
        self._file.seek(start + used)
        return list(texts_of(text.splitlines()))

    def close(self) -> None:
        self._file.close()
