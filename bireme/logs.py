"""The loggers of bireme, which stand below the logger `bireme` of the standard `logging`.

A program that configures no logging sees their records on stderr, as plain lines, from INFO on.
Handlers of a program's own, at the root or at `bireme`, replace that.
"""

import logging
import sys
from typing import TextIO

__all__ = ["logger", "show_error", "use"]

ROOT = "bireme"


class _Stderr(logging.StreamHandler[TextIO]):
    """Shows on stderr, as it is at the time, what no other handler takes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.addFilter(lambda record: not _taken_elsewhere())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def _taken_elsewhere() -> bool:
    top = logging.getLogger(ROOT)
    return any(handler is not _stderr for handler in (*top.handlers, *logging.root.handlers))


_stderr = _Stderr()


def logger(area: str) -> logging.Logger:
    """The logger of one area of bireme.

    >>> logger("server").name
    'bireme.server'
    """
    top = logging.getLogger(ROOT)
    if _stderr not in top.handlers:
        top.addHandler(_stderr)
        if top.level == logging.NOTSET:
            top.setLevel(logging.INFO)
    return logging.getLogger(f"{ROOT}.{area}")


def show_error(text: str, error: BaseException) -> None:
    """Show an error that ends the process, as the interpreter shows a traceback: on stderr,
    whatever handlers there are.
    """
    record = logging.LogRecord(ROOT, logging.ERROR, "", 0, text, None, None)
    record.error = type(error).__name__
    _stderr.emit(record)


def use(form: logging.Formatter) -> None:
    """Show records on stderr in this form."""
    _stderr.setFormatter(form)
