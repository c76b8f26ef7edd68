"""The thread pool that splits the work of one operator on the host. A thread that takes part is a
lane.

NumPy releases the GIL while it computes, so pieces of one operator run in parallel, if their calls
are long: a lane that wants the lock back from another sleeps until it gets it, which takes as long
as a pass over some 100 KiB. So pieces are few, and make few calls. BLAS uses one thread meanwhile:
its own threads spin while they wait, which is slightly faster on an idle machine and many times
slower once two processes share a core.

No result depends on the number of lanes. Where the cut may change a bit (sums over pieces, products
of parts of matrices), it follows from shapes alone, and one lane computes the same pieces.
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

__all__ = ["count", "cut", "run", "settle", "share", "spread"]

Job = Callable[[], object]
_WORTH = 1 << 20  # elements touched: 0.1 ms; less work does not wake another thread


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


def cut(size: int, count: int) -> list[slice]:
    """range(size) in at most `count` nearly equal parts."""
    count = max(1, min(size, count))
    cuts = [size * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def share(work: Callable[[slice], object], parts: Sequence[slice]) -> None:
    """Call `work` for each of the parts, in parallel."""
    run([functools.partial(work, part) for part in parts])


def spread(xp: Any, work: Callable[[slice], object], size: int, cost: int) -> None:
    """Call `work` for ranges that cover range(size), in parallel if `cost`, the total number of
    elements touched, makes it worthwhile; on a device, call it once.

    The ranges depend on the number of lanes: this is for work whose results do not depend on them.
    """
    if xp is not np or count() == 1 or cost < _WORTH:
        work(slice(0, size))
    else:
        share(work, cut(size, min(_count, 2 * cost // _WORTH)))


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _crew
    _crew = None


os.register_at_fork(after_in_child=_forget)
