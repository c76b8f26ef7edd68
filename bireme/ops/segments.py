"""Sequence arithmetic: offsets, row indices, padding. Offsets live on the host, rows anywhere.

This file knows LoDs and arrays, no operators.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

Lod = tuple[Array, ...]


def offsets_of(lod: Lod, operator: str, level: int = -1) -> Array:
    """One level of a LoD.

    Raises:
        InvalidArgument: the input has no such level.
    """
    if not lod or not -len(lod) <= level < len(lod):
        raise InvalidArgument(
            f"{operator} needs an input with sequences (LoD level {level}), got {len(lod)} levels",
            hint="feed a LoDTensor: fluid.create_lod_tensor(data, [[2, 3]], place)",
        )
    return lod[level]


def from_lengths(lengths: Array) -> Array:
    """Offsets of sequences of these lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def ranges(starts: Array, lengths: Array) -> Array:
    """All of `starts[i], starts[i] + 1, ...`, `lengths[i]` numbers each, in one array."""
    total = from_lengths(lengths)
    return np.arange(total[-1]) + np.repeat(np.asarray(starts) - total[:-1], lengths)


def owners(offsets: Array) -> Array:
    """For each row the sequence it belongs to."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def picked(xp: Array, x: Array, lod: Lod, chosen: Array) -> tuple[Array, Lod]:
    """The sequences `chosen` of the outermost level (rows, without a LoD), and their LoD."""
    levels: list[Array] = []
    for offsets in lod:
        lengths = np.diff(offsets)[chosen]
        levels.append(from_lengths(lengths))
        chosen = ranges(offsets[:-1][chosen], lengths)
    return x[xp.asarray(chosen)], tuple(levels)


def lod_of(output: str, source: str) -> Callable[..., dict[str, Lod]]:
    """A LoD rule: only `output` has sequences, those of `source`."""
    return lambda lods, values, attrs: {output: lods.get(source, ())}


class Padded(NamedTuple):
    """Sequences as a rectangle: which row stands where, and which places hold one."""

    index: Array
    mask: Array

    @property
    def steps(self) -> int:
        return int(self.index.shape[1])


def padded_index(offsets: Array, width: int | None = None, reverse: bool = False) -> Padded:
    """Row index of each (sequence, step); places past the end point at row 0 and are masked out."""
    lengths = np.diff(offsets)
    steps = np.arange(int(lengths.max(initial=0)) if width is None else width)
    mask = steps < lengths[:, None]
    from_start = offsets[:-1, None] + steps
    from_end = offsets[1:, None] - 1 - steps
    return Padded(np.where(mask, from_end if reverse else from_start, 0), mask)


def pad(xp: Array, x: Array, padded: Padded, fill: Any = 0) -> Array:
    """Rows of `x` as (sequence, step, ...), `fill` where there is none."""
    mask = xp.asarray(padded.mask).reshape(padded.mask.shape + (1,) * (x.ndim - 1))
    if not len(x):
        return xp.full((*padded.mask.shape, *x.shape[1:]), fill, dtype=x.dtype)
    return xp.where(mask, x[xp.asarray(padded.index)], xp.asarray(fill, dtype=x.dtype))


def unpad(xp: Array, values: Array, padded: Padded, rows: int) -> Array:
    """Rows in their old order from a rectangle."""
    out = xp.zeros((rows, *values.shape[2:]), dtype=values.dtype)
    out[xp.asarray(padded.index[padded.mask])] = values[xp.asarray(padded.mask)]
    return out


def segment_sum(xp: Array, x: Array, offsets: Array) -> Array:
    """The sum of the rows of each sequence; zero for an empty one."""
    lengths = np.diff(offsets)
    out = xp.zeros((len(lengths), *x.shape[1:]), dtype=x.dtype)
    filled = np.nonzero(lengths)[0]
    if len(filled) and hasattr(xp.add, "reduceat"):
        out[filled] = xp.add.reduceat(x, xp.asarray(offsets[:-1][filled]), axis=0)
    elif len(filled):
        out += pad(xp, x, padded_index(offsets)).sum(axis=1)
    return out


def largest(xp: Array, places: Array) -> Array:
    """The largest of each sequence's places; minus infinity where there are none."""
    if not places.shape[1]:
        return xp.full((len(places), *places.shape[2:]), -np.inf, dtype=places.dtype)
    return places.max(axis=1)


def sequence_lengths(length: Array) -> Array:
    """A Length input as a flat host array."""
    return np.asarray(length).reshape(-1).astype(np.int64)
