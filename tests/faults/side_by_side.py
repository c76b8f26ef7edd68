"""Processes that try cases, each by forks of itself: so each has one thread only."""

import multiprocessing
import multiprocessing.pool
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from . import forked

__all__ = ["workers"]


@contextmanager
def workers(count: int) -> Iterator[multiprocessing.pool.Pool]:
    """Prepared processes; SIGTERM ends the job that one runs, then the process."""
    forked.preload()
    with multiprocessing.get_context("fork").Pool(
        count, signal.signal, (signal.SIGTERM, _end)
    ) as pool:
        yield pool
        pool.close()  # idle ones end in order: just before they wait, they would miss a signal
        pool.join()


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
