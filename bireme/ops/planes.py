"""Images as [N, C, rest], whichever side their channels are on, and sums over each channel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array

__all__ = ["Channels", "per_channel", "planes", "unplanes"]


def planes(x: Array, layout: str) -> Array:
    """[N, C, rest] of an array of either layout; for channels last a transposed view."""
    if layout == "NHWC" and x.ndim > 2:
        return x.reshape(len(x), -1, x.shape[-1]).transpose(0, 2, 1)
    return x.reshape(len(x), x.shape[1], -1)


def unplanes(xp: Any, array: Array, shape: Sequence[int], layout: str) -> Array:
    if layout == "NHWC" and len(shape) > 2:
        return xp.ascontiguousarray(array.transpose(0, 2, 1)).reshape(shape)
    return array.reshape(shape)


def per_channel(xp: Any, a: Array, b: Array) -> Array:
    """The sum of a * b over everything but the channel."""
    return xp.einsum("nch,nch->nc", a, b).sum(axis=0)


class Channels:
    """Sums over, and numbers for, the channels of arrays like x [N, C, rest].

    On the host, where planes lie in one piece, sums are products with ones, and a number per
    channel is written out as a plane that all samples share: a loop over whole planes costs a third
    of one loop per plane. The room for this is used again for every number.
    """

    def __init__(self, xp: Any, x: Array) -> None:
        self._xp = xp
        self._plain = xp is np and x.strides[-1] == x.itemsize
        if self._plain:
            self._ones = np.ones(x.shape[2], dtype=x.dtype)
            self._wide = np.empty(x.shape[1:], dtype=x.dtype)

    def sum(self, x: Array) -> Array:
        if self._plain:
            return np.matmul(x, self._ones).sum(axis=0)
        return self._xp.einsum("nch->nc", x).sum(axis=0)

    def along(self, a: Array, b: Array) -> Array:
        """The sum of a * b."""
        return np.vecdot(a, b).sum(axis=0) if self._plain else per_channel(self._xp, a, b)

    def wide(self, number: Array) -> Array:
        """A number per channel, as it meets planes, until the next one."""
        if not self._plain:
            return number[:, None]
        self._wide[...] = number[:, None]
        return self._wide
