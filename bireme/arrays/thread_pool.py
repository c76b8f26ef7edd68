"""The thread pool that splits the work of one operator on the host. A thread that takes part is a
lane.

NumPy releases the GIL while it computes, so pieces of one operator run in parallel. BLAS uses one
thread meanwhile: its own threads spin while they wait, which is slightly faster on an idle machine
and many times slower once two processes share a core. Pieces depend only on the number of lanes,
never on timing, so that results are reproducible.
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
_WORTH = 1 << 17  # elements touched; less work does not wake another thread
_PIECES = 2  # pieces per lane, so that other lanes take over from a delayed one


class _Here(threading.local):
    """Whether this thread is running a piece; nested work is not split again."""

    inside = False


_here = _Here()


class _Crew:
    """Threads that run submitted jobs; they block while idle."""

    def __init__(self, helpers: int) -> None:
        self._calls: SimpleQueue[Job] = SimpleQueue()
        for i in range(helpers):
            threading.Thread(target=self._help, name=f"lane-{i + 1}", daemon=True).start()
        self._helpers = helpers

    def _help(self) -> None:
        while True:
            self._calls.get()()

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs; the caller takes part, and runs all of them if no thread is free."""
        left, done = deque(jobs), SimpleQueue[BaseException | None]()

        def take() -> None:
            outer, _here.inside = _here.inside, True
            while left:
                try:
                    job = left.popleft()
                except IndexError:  # another thread was faster
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
    """Set the number of lanes once: the flag, else the number of threads of BLAS."""
    global _count, _settled
    if _settled:
        return
    _settled = True
    _count = max(1, int(flags.get("paddle_num_threads")) or blas.threads() or 1)


def count() -> int:
    """The number of threads that share the next work, including the caller."""
    return 1 if _here.inside else _count


def run(jobs: Sequence[Job]) -> None:
    """Run jobs in parallel in any order; raises the error of one of them after all have ended."""
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
    """Call `work` for ranges that cover range(size), in parallel if `cost`, the total number of
    elements touched, makes it worthwhile; on a device, call it once.

    Each lane gets at most `pieces` ranges: 1 if splitting has a cost, 0 if it costs too much.
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
