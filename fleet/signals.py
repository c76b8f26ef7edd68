"""Turns termination signals into exceptions, so that commands clean up.

A shell starts background jobs with SIGINT ignored, and Python then raises no KeyboardInterrupt, so
commands install their own handler.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["ENDING", "INTERRUPTED", "ending"]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 128 + signal.SIGINT  # exit code after Ctrl-C


@contextmanager
def ending() -> Iterator[None]:
    """Inside the block, termination signals raise SystemExit with 128 + the signal's number.

    Outside the main thread, which alone receives signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
