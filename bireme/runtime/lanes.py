"""Lanes: the threads among which a kernel on the host shares out one operator's work.

NumPy lets go of the interpreter while it computes, so that pieces of one operator run side by
side. BLAS itself is told to use one thread: its own threads wait by spinning, which is a little
faster on an idle machine and many times slower as soon as two processes share a core. Pieces are
cut by the number of lanes alone, never by who is free, so that results repeat bit for bit. This
file knows no operators.
"""

import contextvars
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from bireme import flags

from . import blas

__all__ = ["count", "run", "settle", "spread"]

Job = Callable[[], object]
_WORTH = 1 << 17  # elements touched: less is done before another thread wakes up
_PIECES = 2  # per lane, so that a lane that is held up leaves work to the others


class _Here(threading.local):
    """Whether this thread runs a piece already: its own work is then not cut any further."""

    inside = False


_here = _Here()


class _Crew:
    """Threads that help whoever has jobs to share; they wait without using the processor."""

    def __init__(self, helpers: int) -> None:
        self._calls: SimpleQueue[Job] = SimpleQueue()
        for i in range(helpers):
            threading.Thread(target=self._help, name=f"lane-{i + 1}", daemon=True).start()
        self._helpers = helpers

    def _help(self) -> None:
        while True:
            self._calls.get()()

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; the caller takes its share, and all of them if nobody comes to help."""
        left, done = deque(jobs), SimpleQueue[BaseException | None]()

        def take() -> None:
            outer, _here.inside = _here.inside, True
            while left:
                try:
                    job = left.popleft()
                except IndexError:  # another was faster
                    break
                try:
                    job()
                    done.put(None)
                except BaseException as error:
                    done.put(error)
            _here.inside = outer

        for _ in range(min(self._helpers, len(jobs) - 1)):
            self._calls.put(functools.partial(contextvars.copy_context().run, take))
        take()
        errors = [error for error in [done.get() for _ in jobs] if error is not None]
        if errors:
            raise errors[0]


_count = 1
_crew: _Crew | None = None
_settled = False


def settle() -> None:
    """Decide the number of lanes, once: what the flag says, else as many as BLAS would use."""
    global _count, _settled
    if _settled:
        return
    _settled = True
    usual = blas.threads()
    wanted = int(flags.get("paddle_num_threads")) or usual or 1
    if usual is not None:
        blas.set_threads(1)
    _count = max(1, wanted)


def count() -> int:
    """How many threads share the work that comes now, the caller's included."""
    return 1 if _here.inside else _count


def run(jobs: Sequence[Job]) -> None:
    """Run jobs side by side, in any order; an error of one is raised when all have ended."""
    global _crew
    if count() == 1 or len(jobs) < 2:
        for job in jobs:
            job()
        return
    if _crew is None:
        _crew = _Crew(_count - 1)
    _crew.run(jobs)


def spread(
    xp: Any, work: Callable[[slice], object], size: int, cost: int, pieces: int = _PIECES
) -> None:
    """Call `work` for parts that together cover range(size), side by side where `cost`, the number
    of elements that all of it touches, makes that worth while; on a device, once.

    A lane gets so many `pieces`: one where cutting costs something, none where it costs too much.
    """
    if xp is not np or count() == 1 or cost < _WORTH or size < 2:
        work(slice(0, size))
        return
    parts = max(1, min(size, pieces * _count))
    cuts = [size * i // parts for i in range(parts + 1)]
    run([functools.partial(work, slice(a, b)) for a, b in itertools.pairwise(cuts)])


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _crew
    _crew = None


os.register_at_fork(after_in_child=_forget)
