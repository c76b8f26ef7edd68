"""Rings: the communicators of a program, each with a queue of its own.

A started all-reduce overlaps with the operators that follow; `wait` is where its result is needed.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from bireme.arrays.namespaces import Array
from bireme.monitoring.step_clock import WAIT, step_clock

from .group import Group
from .ordered_queue import OrderedQueue, Work
from .shared_buffer import SharedBuffer

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
    """One communicator; collectives that are started run in order beside their caller."""

    def __init__(self, group: Group, inter_ranks: int = 0) -> None:
        self.group = group
        self._hierarchy = Hierarchy(group, inter_ranks) if inter_ranks else None
        self._queue = OrderedQueue()
        self._last: Work | None = None
        self._stages: list[Sequence[Callable[[], None]]] = []  # of what was announced
        self._error: BaseException | None = None

    def shared_buffer(self, size: int) -> SharedBuffer | None:
        """Memory that the ranks read from each other, or None; every rank calls this, in order."""
        if self._hierarchy is not None:
            return None
        found: SharedBuffer | None = self._queue.do(
            lambda: self.group.shared_buffer(size), later=False
        )
        return found

    def all_reduce(self, array: Array, op: str = "sum") -> None:
        (self._hierarchy or self.group).all_reduce(array, op)

    def start(self, act: Callable[[], None]) -> None:
        """Call `act` after what was started before; at once if the group itself queues."""
        self._raise()
        if self.group.queues:
            act()
        else:
            self._last = self._queue.do(lambda: self._act(act), later=True)

    def announce(self, tell: Callable[[], None], stages: Sequence[Callable[[], None]]) -> None:
        """Call `tell` now, which announces something to the other ranks; and in `wait`, when all
        have announced the same, the stages: the first ones of everything, then the second.
        """
        self._raise()
        self._queue.do(tell, later=False)
        self._stages.append(stages)

    def _act(self, act: Callable[[], None]) -> None:
        if self._error is None:
            try:
                act()
            except BaseException as error:
                self._error = error

    def wait(self) -> None:
        """Return when everything started is done; raise what it raised."""
        before = step_clock.enter(WAIT)
        if self._last is not None:
            self._last.wait()
        self._raise()
        self.group.wait()
        step_clock.enter(before)
        if self._stages:
            self._settle()

    def _settle(self) -> None:
        """Run the stages of what was announced."""
        before = step_clock.enter(WAIT)
        self._queue.do(self.group.hear, later=False)
        step_clock.enter(before)
        heard, self._stages = self._stages, []
        for together in zip_longest(*heard):
            for stage in together:
                if stage is not None:
                    stage()

    def run(self, act: Callable[[], None]) -> None:
        """Start `act` and wait for it."""
        self.start(act)
        self.wait()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._queue.close()
        if self._hierarchy is not None:
            self._hierarchy.close()
        self.group.close()
