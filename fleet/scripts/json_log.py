"""FLAGS_log_json: what a script and bireme print becomes lines of JSON, for collectors of logs.

Covers `print`, `sys.stdout` and `sys.stderr`, `logging`, warnings, and the error that ends the
process, which is one line with all of its text. What libraries in C write to the descriptors stays
as it is.
"""

import contextlib
import io
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TextIO

from bireme import flags
from bireme.ending import show_by
from bireme.errors import BiremeError
from bireme.monitoring.counters import tally

from ..log_lines import as_json

__all__ = ["install"]


def install() -> None:
    """Replace the streams if the flag says so; calling it again changes nothing."""
    if not flags.get("log_json") or isinstance(sys.stdout, _Lines):
        return
    sys.stdout, sys.stderr = _Lines(sys.stdout, "stdout"), (log := _Lines(sys.stderr, "stderr"))
    logging.lastResort = _Handler(logging.WARNING)
    show_by(_shown_on(log))
    sys.excepthook = _as_one_line(sys.excepthook)


class _Lines(io.TextIOBase):
    """A stream that writes each line as JSON to another."""

    def __init__(self, under: TextIO, name: str) -> None:
        self._under = under
        self._name = name
        self._rest = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._under.encoding

    @property
    def buffer(self) -> Any:
        return self._under.buffer

    def fileno(self) -> int:
        return self._under.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.say(line)
        return len(text)

    def say(self, message: str, level: str = "info", **more: Any) -> None:
        who = {"role": tally.role, "index": tally.index, "step": tally.steps, "pid": os.getpid()}
        line = as_json(time.time(), message, level=level, **who, stream=self._name, **more)
        self._under.write(line + "\n")

    def flush(self) -> None:
        self._under.flush()

    def close(self) -> None:
        """Write what is left of a line; the stream below stays open."""
        if self._rest:
            self.say(self._rest)
            self._rest = ""
        self.flush()


class _Handler(logging.Handler):
    """Records that no other handler takes."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if isinstance(stream, _Lines):
            level = record.levelname.lower()
            stream.say(self.format(record), level=level, logger=record.name)


def _shown_on(stream: "_Lines") -> Callable[[BiremeError], None]:
    lines = weakref.ref(stream)  # which writes what is left of a line when it is deleted

    def show(error: BiremeError) -> None:
        if log := lines():
            kind = type(error).__name__
            log.say(f"bireme: {kind}: {error}", level="error", error=kind)
            log.flush()

    return show


def _as_one_line(hook: Any) -> Any:
    def said(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text, stream = io.StringIO(), sys.stderr
        try:
            with contextlib.redirect_stderr(text):
                hook(kind, error, trace)
        finally:
            if isinstance(stream, _Lines) and text.getvalue():
                stream.say(text.getvalue().rstrip(), level="error", error=kind.__name__)
                stream.flush()

    said._notes = getattr(hook, "_notes", False)  # type: ignore[attr-defined]  # see `ending`
    said._of_bireme = True  # type: ignore[attr-defined]  # `uncaught.install` leaves it in place
    return said
