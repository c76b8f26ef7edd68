"""Starting processes as a shell does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ignoring"]


@contextmanager
def ignoring(number: signal.Signals) -> Iterator[None]:
    """Processes started in the block begin with this signal ignored."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)
