"""Arrays that stand end to end in one memory, as one array."""

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = ["Adjoining"]

_REMEMBERED = 8  # regions of shared memory


class Adjoining:
    """The flat array over a list of arrays that stand end to end.

    Lists are known again by their first array, which is not held: whoever offers memory wants to
    know whether anybody uses it.
    """

    def __init__(self) -> None:
        self._spans: dict[int, tuple[weakref.ref[Any], tuple[int, int] | None]] = {}

    def __call__(self, arrays: Sequence[Array]) -> Array | None:
        """One array for all of them; None if there are none, or gaps between them."""
        if not arrays:
            return None
        first = arrays[0]
        if len(arrays) == 1:
            return first.reshape(-1) if first.flags.c_contiguous else None
        known = self._spans.get(id(first))
        if known is None or known[0]() is not first:
            if len(self._spans) > _REMEMBERED:
                self._spans.clear()
            known = self._spans[id(first)] = (weakref.ref(first), _span(arrays))
        if known[1] is None:
            return None
        offset, size = known[1]
        return np.ndarray(size, first.dtype, first.base, offset)


def _span(arrays: Sequence[Array]) -> tuple[int, int] | None:
    """Where in their base these arrays begin, and how many elements they have, if they stand end
    to end there.
    """
    base, begin = arrays[0].base, arrays[0].ctypes.data
    if not isinstance(base, np.ndarray) or base.ndim != 1:
        return None
    end = begin
    for array in arrays:
        if array.base is not base or array.ctypes.data != end:
            return None
        end += array.nbytes
    return begin - base.ctypes.data, (end - begin) // arrays[0].itemsize
