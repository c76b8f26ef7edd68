"""The line of a user's script: the innermost frame that is neither this package's nor the standard
library's, whose frames may lie between (`with`, `functools`, `contextlib`).
"""

import functools
import os
import sys
from types import FrameType, TracebackType
from typing import NamedTuple

__all__ = ["Site", "calling_site", "is_users", "raising_site"]

_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")


class Site(NamedTuple):
    """A line of the user's script: the one that created an operator."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def calling_site() -> Site | None:
    """The user's line that is being executed; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return _site(frame, frame.f_lineno)
        frame = frame.f_back
    return None


def raising_site(trace: TracebackType | None) -> Site | None:
    """The user's line by which an error came about; None if none is in its traceback."""
    found = None
    while trace is not None:
        if is_users(trace.tb_frame):
            found = _site(trace.tb_frame, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _site(frame: FrameType, line: int) -> Site:
    return Site(frame.f_code.co_filename, line, frame.f_code.co_name)


def is_users(frame: FrameType) -> bool:
    """Whether the user's script is at work in a frame."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package != "bireme" and not _is_standard(frame.f_code.co_filename)


@functools.cache
def _is_standard(file: str) -> bool:
    if not file.startswith(_STANDARD):
        return file.startswith("<frozen ")
    return not any(part in file[len(_STANDARD) :].split(os.sep) for part in _INSTALLED)
