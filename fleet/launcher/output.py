"""What the launcher prints must not end the job: a stream that fails is given up."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["given_up_if_full", "unfailing"]


@contextmanager
def given_up_if_full(stream: TextIO) -> Iterator[None]:
    """In the block, a stream that cannot be written to (a full disk, a closed pipe) is replaced by
    the null device, which stderr is told of.
    """
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        with contextlib.suppress(OSError, ValueError):
            note = f"bireme: the launcher's output ends here: {error.strerror}; the job continues"
            print(note, file=sys.stderr, flush=True)


def unfailing(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same for a function that prints to stdout."""

    def said(line: str) -> None:
        with given_up_if_full(sys.stdout):
            say(line)

    return said
