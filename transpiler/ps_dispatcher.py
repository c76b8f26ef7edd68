"""Who owns a slice: dispatchers place variables on endpoints. The placement of a parameter
decides that of its gradient.
"""

import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

from bireme.errors import ConfigError
from bireme.ir import ITEM_SIZE

__all__ = ["HashName", "PSDispatcher", "RoundRobin", "SizeBalanced"]


class PSDispatcher:
    """Derive from this class for a rule of your own: override `dispatch`.

    One instance places all slices of a program, in one call, after `reset`.
    """

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._eps = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        return self._eps

    def reset(self) -> None:
        """Begin again at the first endpoint."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """The endpoint of each variable; a variable has `.name`, `.shape` and `.dtype`."""
        raise ConfigError(
            f"{type(self).__name__} does not say where variables go",
            hint="override dispatch(varlist) to return one endpoint for each variable",
        )


class RoundRobin(PSDispatcher):
    """Each variable goes to the next endpoint."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        first, self._step = self._step, self._step + len(varlist)
        return [self._eps[(first + i) % len(self._eps)] for i in range(len(varlist))]


class HashName(PSDispatcher):
    """A variable's name decides, by a hash that is the same in every process (CRC-32)."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        return [self._eps[zlib.crc32(v.name.encode()) % len(self._eps)] for v in varlist]


class SizeBalanced(PSDispatcher):
    """Largest first, each to the endpoint that holds least so far: the bytes per server come out
    even.
    """

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        load = dict.fromkeys(self._eps, 0)
        homes = [""] * len(varlist)
        sizes = [prod(v.shape) * ITEM_SIZE.get(v.dtype, 4) for v in varlist]
        for i in sorted(range(len(varlist)), key=lambda i: -sizes[i]):
            homes[i] = min(load, key=load.__getitem__)
            load[homes[i]] += max(1, sizes[i])
        return homes
