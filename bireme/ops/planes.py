"""Images as [N, C, rest], whichever side their channels are on, and sums over each channel."""

from collections.abc import Sequence
from typing import Any

from bireme.runtime.arrays import Array

__all__ = ["per_channel", "planes", "unplanes"]


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
