"""Flat arrays in which several values travel as one, kept from step to step.

A large gradient is computed in its place there, so that nothing is copied before it travels. Ranks
of one host read each other's arrays where they lie.
"""

import threading
import weakref
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from bireme.arrays.namespaces import Array, namespace_of
from bireme.arrays.ownership import references, shared
from bireme.runtime.scope import Scope

from .rings import Ring
from .shared_buffer import SharedBuffer

__all__ = ["FlatBuffer", "FlatBuffers"]


class FlatBuffer:
    """One flat array, and views of it in the shapes of the values that travel."""

    def __init__(self, values: Sequence[Array], memory: SharedBuffer | None = None) -> None:
        xp, dtype = namespace_of(values[0]), values[0].dtype
        bounds = list(accumulate((value.size for value in values), initial=0))
        self._cuts = [slice(begin, end) for begin, end in pairwise(bounds)]
        self._shapes = [value.shape for value in values]
        self.shared = memory
        self.flat = xp.empty(bounds[-1], dtype) if memory is None else memory.own.view(dtype)
        # The base of every view.
        self._memory = self.flat if self.flat.base is None else self.flat.base
        self._views = [self.view(self.flat, index) for index in range(len(values))]
        self._holders = 0

    def view(self, flat: Array, index: int) -> Array:
        """One of the values in an array like the flat one."""
        return flat[self._cuts[index]].reshape(self._shapes[index])

    def count_holders(self) -> None:
        """Call this where nobody else refers to the memory: whoever does later is looking at it."""
        self._holders = references(self._memory)

    def offer(self, index: int, shape: tuple[int, ...], dtype: str) -> Array | None:
        """The place of a value, unless somebody still looks at the last step's values."""
        view = self._views[index]
        if view.shape != shape or view.dtype != dtype or shared(self._memory, self._holders):
            return None
        if self.shared is not None:
            self.shared.write()
        return view[...]

    def fill(self, values: Sequence[Array]) -> list[Array]:
        """Copy the values that were not computed here; return them where they travel."""
        if self.shared is not None:
            self.shared.write()
        found = list(self._views)
        for i, value in enumerate(values):
            if self._holds(value, found[i]):
                found[i] = value
            else:
                found[i][...] = value
        return found

    def _holds(self, value: Array, view: Array) -> bool:
        return value.base is self._memory and _address(value) == _address(view)


def _address(array: Array) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _kind(names: tuple[str, ...], values: Sequence[Array]) -> tuple[Any, ...]:
    """Equal for values that travel alike."""
    return names, values[0].dtype, *(value.shape for value in values)


class FlatBuffers:
    """The flat arrays of a scope, by what travels in them."""

    _lock = threading.Lock()
    _known: "weakref.WeakKeyDictionary[Scope, FlatBuffers]" = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self._buffers: dict[tuple[Any, ...], FlatBuffer] = {}
        self._shared: dict[tuple[Any, ...], FlatBuffer | None] = {}
        self._places: dict[str, tuple[FlatBuffer, int]] = {}

    @classmethod
    def of(cls, scope: Scope) -> "FlatBuffers":
        with cls._lock:
            return cls._known.setdefault(scope, cls())

    def find(self, names: tuple[str, ...], values: Sequence[Array], ring: Ring) -> FlatBuffer:
        """The buffer of these values; every rank makes it in the same step."""
        key = _kind(names, values)
        found = self._buffers.get(key)
        if found is None:
            memory = ring.shared_buffer(sum(value.nbytes for value in values))
            found = FlatBuffer(values, memory)
            found.count_holders()
            self._buffers[key] = found
            self._places |= {name: (found, index) for index, name in enumerate(names)}
        return found

    def find_shared(
        self, names: tuple[str, ...], values: Sequence[Array], ring: Ring
    ) -> FlatBuffer | None:
        """A buffer in memory that the ranks share, to copy values to; None without such memory."""
        key = _kind(names, values)
        if key not in self._shared:
            memory = ring.shared_buffer(sum(value.nbytes for value in values))
            self._shared[key] = None if memory is None else FlatBuffer(values, memory)
        return self._shared[key]

    def offer(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Memory to compute a value in."""
        place = self._places.get(name)
        return None if place is None else place[0].offer(place[1], shape, dtype)
