"""Rings: the communicators of a program, each with a queue of its own.

An all-reduce that is started runs beside the operators that follow, in the order in which it was
started; `wait` is where its result must be there. Knows groups, not programs.
"""

import queue
import threading
from collections.abc import Callable

from bireme.runtime.arrays import Array

from .group import Group

__all__ = ["Hierarchy", "Ring"]


class Hierarchy:
    """All-reduce in three steps: to the leader of each group, among leaders, and back."""

    def __init__(self, group: Group, inter_ranks: int) -> None:
        """Groups are `inter_ranks` neighbours: the ranks of one machine."""
        inner = group.split(group.rank // inter_ranks, group.rank)
        assert inner is not None
        self._inner: Group = inner
        self._leaders = group.split(None if inner.rank else 0, group.rank)
        self._size = group.size

    def all_reduce(self, array: Array, op: str) -> None:
        step = "sum" if op == "avg" else op
        self._inner.reduce(array, 0, step)
        if self._leaders is not None:
            self._leaders.all_reduce(array, step)
        self._inner.broadcast(array, 0)
        if op == "avg":
            self._inner.wait()
            array /= array.dtype.type(self._size)

    def close(self) -> None:
        for group in (self._inner, self._leaders):
            if group is not None:
                group.close()


class Ring:
    """One communicator: collectives that are started run in order, beside their caller."""

    def __init__(self, group: Group, inter_ranks: int = 0) -> None:
        self.group = group
        self._hierarchy = Hierarchy(group, inter_ranks) if inter_ranks else None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._pending = 0
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        (self._hierarchy or self.group).all_reduce(array, op)

    def start(self, work: Callable[[], None]) -> None:
        """Run `work` after what was started before. A device's group queues by itself."""
        self._raise()
        if self.group.queues:
            work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="bireme-ring", daemon=True)
            self._thread.start()
        with self._lock:
            self._pending += 1
            self._idle.clear()
        self._queue.put(work)

    def wait(self) -> None:
        """Return when everything started is done; raise what it raised."""
        # The work itself has deadlines; the tick keeps Ctrl-C working.
        while not self._idle.wait(1.0):
            pass
        self._raise()
        self.group.wait()

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` in its turn and wait for it."""
        self.start(work)
        self.wait()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._error is None:
                try:
                    work()
                except BaseException as error:
                    self._error = error
            with self._lock:
                self._pending -= 1
                if self._pending == 0:
                    self._idle.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._queue.put(None)
        if self._hierarchy is not None:
            self._hierarchy.close()
        self.group.close()
