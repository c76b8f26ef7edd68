"""Arrays that every rank of one host computes where the others read them.

A rank writes its own array once all ranks have read the last one, and announces it; when everybody
has, each reads the arrays of all. Nothing is copied, and who comes first waits for nobody until it
reads.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from bireme.arrays.namespaces import Array
from bireme.monitoring.step_clock import WAIT, step_clock

__all__ = ["MARK", "Announcer", "SharedBuffer"]

MARK = 64  # bytes at the end of a rank's memory: two counters
_READ, _REDUCED = 0, 1  # how many of the announced arrays this rank has read, reduced its part of


class Announcer(Protocol):
    """The group whose ranks share a buffer."""

    rank: int

    def announce(self, call: str) -> None:
        """Tell the others of a call without waiting for theirs."""

    def wait_in_memory(self, late: Callable[[], list[int]]) -> None:
        """Return when memory shows that no rank is late."""


class SharedBuffer:
    """An array of each rank, of equal sizes, in memory that all of them map."""

    def __init__(self, group: Announcer, regions: Sequence[Array], size: int) -> None:
        self._group = group
        self._marks = [memoryview(region[-MARK:][:16]).cast("q") for region in regions]
        self.arrays = [region[:size] for region in regions]  # as bytes, in rank order
        self.own = self.arrays[group.rank]
        self._announced = 0
        self._writable = False

    def arrays_of(self, dtype: object) -> list[Array]:
        """The arrays of all ranks, in rank order, as elements."""
        return [array.view(dtype) for array in self.arrays]

    def write(self) -> None:
        """Return when the own array may be written: when all ranks have read the last one."""
        if not self._writable:
            self.release()
            self._wait(_READ)
            self._writable = True

    def announce(self, call: str) -> None:
        """The own array is complete. Everybody's is once the group has heard all ranks."""
        self._writable = False
        self._announced += 1
        self._group.announce(call)

    def reduced(self) -> None:
        """This rank has reduced its part of the arrays into its own."""
        self._mark(_REDUCED)

    def wait_reduced(self) -> None:
        """Return when all ranks have reduced their parts."""
        self._wait(_REDUCED)

    def release(self) -> None:
        """This rank has read what it needs of the others' arrays."""
        self._mark(_READ)

    def _mark(self, which: int) -> None:
        self._marks[self._group.rank][which] = self._announced

    def _wait(self, which: int) -> None:
        marks = self._marks
        if any(mark[which] < self._announced for mark in marks):
            before = step_clock.enter(WAIT)
            self._group.wait_in_memory(
                lambda: [r for r, mark in enumerate(marks) if mark[which] < self._announced]
            )
            step_clock.enter(before)
