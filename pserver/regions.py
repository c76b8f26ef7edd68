"""Regions of shared memory in which a server publishes: made as needed, written again when the
core says that nobody reads them and no array of ours lies in them.

The file knows memory and arrays; who reads a region is the core's knowledge (`leases`).
"""

import itertools
from collections.abc import Callable, Sequence

from bireme.arrays.namespaces import Array
from bireme.arrays.ownership import any_shared, references, shared
from bireme.net.memory import Arena, Place

from .leases import Leases

__all__ = ["Region", "Regions"]


class Region:
    """Memory for one publication. While it is `current` it may still be told to trainers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arena = Arena()
        self.current = False
        self.place = Place("", 0)
        self.arrays: list[Array] = []
        self._known = 0

    @property
    def held(self) -> bool:
        """Whether this process holds one of its arrays."""
        if not self.arrays:
            return False
        return any_shared(self.arrays, 1) or shared(self.arrays[0].base, self._known)

    def lay_out(self, size: int, arrays: Callable[[Array], Sequence[Array]]) -> None:
        """Take `size` bytes and cut them into arrays."""
        self.arrays = []
        self.arena.clear()
        self.arena.take(size)
        self.arena.clear()
        self.place, memory = self.arena.take(size)
        self.arrays = list(arrays(memory))
        del memory
        self._known = references(self.arrays[0].base)


_numbers = itertools.count(1)


class Regions:
    """Regions of one use, of one size."""

    def __init__(self, leases: Leases, make: Callable[[int], Region] = Region) -> None:
        self._leases = leases
        self._make = make
        self._regions: list[Region] = []

    def take(self) -> Region:
        """A region that may be written, for the caller to publish in."""
        self._regions = [r for r in self._regions if not self._leases.is_over(r.number)]
        for region in self._regions:
            writable = not region.current and self._leases.may_write(region.number)
            if writable and not region.held:
                break
        else:
            region = self._make(next(_numbers))
            self._regions.append(region)
        region.current = True
        return region
