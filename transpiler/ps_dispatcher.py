"""Dispatchers: they assign slices of parameters to servers. A gradient goes to the server of its
parameter.
"""

import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

from bireme.errors import ConfigError
from bireme.ir import ITEM_SIZE

__all__ = ["HashName", "PSDispatcher", "RoundRobin", "SizeBalanced"]


class PSDispatcher:
    """Base class of dispatchers: override `dispatch`.

    One instance places all slices of a program, in one call, after `reset`.
    """

    def __init__(self, pserver_endpoints: Sequence[str]) -> None:
        self._eps = list(pserver_endpoints)
        self._step = 0

    @property
    def eps(self) -> list[str]:
        return self._eps

    def reset(self) -> None:
        """Restart at the first endpoint."""
        self._step = 0

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        """The endpoint of each variable; a variable has `.name`, `.shape` and `.dtype`."""
        raise ConfigError(
            f"{type(self).__name__} does not implement dispatch",
            hint="override dispatch(varlist) to return one endpoint for each variable",
        )


class RoundRobin(PSDispatcher):
    """Each variable goes to the next endpoint."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        first, self._step = self._step, self._step + len(varlist)
        return [self._eps[(first + i) % len(self._eps)] for i in range(len(varlist))]


class HashName(PSDispatcher):
    """Chosen by a hash of the variable's name that is the same in every process (CRC-32)."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        return [self._eps[zlib.crc32(v.name.encode()) % len(self._eps)] for v in varlist]


class SizeBalanced(PSDispatcher):
    """Largest first, each to the endpoint with the fewest bytes so far."""

    def dispatch(self, varlist: Sequence[Any]) -> list[str]:
        load = dict.fromkeys(self._eps, 0)
        homes = [""] * len(varlist)
        sizes = [prod(v.shape) * ITEM_SIZE.get(v.dtype, 4) for v in varlist]
        for i in sorted(range(len(varlist)), key=lambda i: -sizes[i]):
            homes[i] = min(load, key=load.__getitem__)
            load[homes[i]] += max(1, sizes[i])
        return homes
