"""Waiting for what no event announces: files, logs and processes."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "until"]

T = TypeVar("T")
PATIENCE = 180.0  # seconds; less than a test may take, more than a busy machine needs
PAUSE = 0.01


def until(fact: Callable[[], T], says: Callable[[], object] = str, patience: float = PATIENCE) -> T:
    """What `fact` returns, once that is true; AssertionError with what `says` returns if never."""
    end = time.monotonic() + patience
    while not (found := fact()):
        assert time.monotonic() < end, f"not true within {patience:g} s: {says()}"
        time.sleep(PAUSE)  # the only poll of the tests
    return found
