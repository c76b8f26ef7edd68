"""Windows written out as columns, so that a convolution becomes products of matrices.

Along the first spatial axis neighbouring windows share their rows. Those are written once, and
each row of the filter multiplies another slab of the same columns: a third of the copying of a
3 x 3 filter's windows. Where the outputs of one sample are too few for a product, samples are
written side by side. Knows shapes only; what is multiplied is the convolution's affair.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array, block_bytes

from .windows import Geometry

__all__ = ["Slab", "Unrolling", "unrolling"]

_PARTS = 8  # most parts of the samples; an even number, for the lanes
_PART = 1 << 24  # multiplications, 0.4 ms: parts are no smaller
_COPYING = 32  # multiplications that take as long as writing an element of a column
_TOGETHER = 512  # places of joined samples that make a product of their own
_FEW = 256  # outputs of a sample below which samples are joined
_VERY_FEW = 32  # the same where a sample is its own columns, and only joining copies
_HEAVY = 0.25  # filters over outputs
_NARROW = 48  # rows of columns below which the filter's rows are written out, too

Index = tuple[slice, ...]


class Slab(NamedTuple):
    """The columns that one row of the filter meets, as a part of the flattened last axis."""

    row: int
    part: slice


class Unrolling(NamedTuple):
    """How the windows of [n, groups, channels, spatial...] arrays are written out."""

    geo: Geometry
    spatial: tuple[int, ...]
    out: tuple[int, ...]
    groups: int
    channels: int  # of a group
    places: int  # outputs of all samples
    heavy: bool  # the filters are more than the outputs
    whole: bool  # the filter's rows are written out like its columns: one slab
    joined: bool  # samples lie side by side, innermost

    # -- sizes -----------------------------------------------------------------------------
    @property
    def direct(self) -> bool:
        """Whether the array itself is its columns."""
        return _is_pointwise(self.geo) and not self.joined

    @property
    def taps(self) -> tuple[int, ...]:
        """The part of the filter that is written out."""
        return self.geo.kernel if self.whole else (1, *self.geo.kernel[1:])

    def parts(self, xp: Any, samples: int, weights: int) -> list[slice]:
        """The samples in parts for the lanes; they follow from shapes alone.

        Joined samples gain by lying together, and heavy filters should be read only once, so that
        then their products are cut instead.
        """
        if xp is not np or (self.heavy and self.joined):
            return [slice(0, samples)]
        cost = self.places * (weights + _COPYING * self.inside)
        most = self.places // _TOGETHER if self.joined else samples // 2
        count = min(_PARTS, cost // _PART, most)
        return lanes.cut(samples, count - count % 2)

    @property
    def filter_rows(self) -> int:
        """How many slabs there are."""
        return 1 if self.whole else self.geo.kernel[0]

    @property
    def inside(self) -> int:
        """Rows of the columns of a group."""
        return self.channels * math.prod(self.taps)

    @property
    def phases(self) -> list[int]:
        """First rows, modulo the stride, of the filter's rows."""
        if self.whole:
            return [0]
        step, stride = self.geo.dilations[0], self.geo.strides[0]
        return sorted({k * step % stride for k in range(self.geo.kernel[0])})

    @property
    def rows(self) -> int:
        """Rows of windows that are written for each phase."""
        if self.whole:
            return self.out[0]
        return self.out[0] + (self.geo.kernel[0] - 1) * self.geo.dilations[0] // self.geo.strides[0]

    def slabs(self, samples: int) -> list[Slab]:
        """Where each row of the filter finds its columns, in a chunk of so many samples."""
        line = math.prod(self.out[1:]) * (samples if self.joined else 1)
        if self.whole:
            return [Slab(0, slice(0, self.out[0] * line))]
        found = []
        for k in range(self.geo.kernel[0]):
            start, phase = divmod(k * self.geo.dilations[0], self.geo.strides[0])
            first = (self.phases.index(phase) * self.rows + start) * line
            found.append(Slab(k, slice(first, first + self.out[0] * line)))
        return found

    def chunks(self, xp: Any, part: slice, itemsize: int, filters: int) -> list[slice]:
        """A part of the samples in chunks whose columns stay in the cache; no smaller, though, than
        the so many filters that pass through it with each chunk.
        """
        if self.direct:
            return [part]
        each = self.groups * self.inside * len(self.phases) * self.rows * math.prod(self.out[1:])
        weights = self.groups * filters * self.inside * self.filter_rows * itemsize
        size = max(1, max(block_bytes(xp), weights) // max(1, each * itemsize))
        starts = range(part.start, part.stop, size)
        return [slice(i, min(i + size, part.stop)) for i in starts]

    # -- writing out and folding back ------------------------------------------------------
    def space(self, xp: Any, samples: int, dtype: Any) -> Array:
        """Room for the columns of a chunk; what lies in the borders is zero."""
        outer, inner = (1, samples) if self.joined else (samples, 1)
        lines = (len(self.phases), self.rows, *self.out[1:])
        shape = (outer, self.groups, self.channels, *self.taps, *lines, inner)
        return (xp.zeros if any(map(any, self.geo.pads)) else xp.empty)(shape, dtype=dtype)

    def flat(self, space: Array) -> Array:
        """[samples, groups, inside, columns] of a chunk's room."""
        return space.reshape(len(space), self.groups, self.inside, -1)

    def fill(self, xp: Any, space: Array, x: Array) -> None:
        """Write the windows of x; borders stay zero."""
        source = self.turned(x)
        if self.joined and math.prod(self.taps) > 1:
            source = xp.ascontiguousarray(source)
        for there, here in _moves(self):
            space[there] = source[here]

    def fold(self, xp: Any, space: Array, x: Array) -> None:
        """Add the columns up where they came from, over what x holds."""
        total = xp.zeros(self.turned(x).shape, dtype=x.dtype)
        for there, here in _moves(self):
            total[here] += space[there]
        self.turned(x)[:] = total

    def turned(self, y: Array) -> Array:
        """A chunk [samples, ...] of an array with its samples where the columns have them."""
        if not self.joined:
            return y[..., None]
        return y.transpose(*range(1, y.ndim), 0)[None]

    def _reached(self, axis: int, tap: int) -> tuple[slice, slice]:
        """Which windows' element `tap` lies inside of the array along an axis, and where."""
        first = tap * self.geo.dilations[axis] - self.geo.pads[axis][0]
        return _met(self.spatial[axis], self.out[axis], first, self.geo.strides[axis])

    def _lines(self, tap: int, phase: int) -> tuple[slice, slice]:
        """The same along the first axis."""
        if self.whole:
            return self._reached(0, tap)
        return _met(self.spatial[0], self.rows, phase - self.geo.pads[0][0], self.geo.strides[0])

    def moves(self) -> Iterator[tuple[Any, Any]]:
        """Index of columns and index of the array for everything that is written at once."""
        everything = (slice(None),) * 3  # samples, groups, channels
        for offset in itertools.product(*map(range, self.taps)):
            rest = [self._reached(axis, offset[axis]) for axis in range(1, len(self.out))]
            for i, phase in enumerate(self.phases):
                lines = [self._lines(offset[0], phase), *rest]
                if all(there.start < there.stop for there, _ in lines):
                    theirs, ours = zip(*lines, strict=True)
                    yield (*everything, *offset, i, *theirs), (*everything, *ours)


@functools.lru_cache(maxsize=1024)
def _moves(how: Unrolling) -> list[tuple[Any, Any]]:
    return list(how.moves())


def _met(size: int, count: int, first: int, stride: int) -> tuple[slice, slice]:
    """Of windows at first, first + stride, ... those inside of range(size), and their places."""
    low = max(0, -(first // stride))
    high = max(low, min(count, (size - 1 - first) // stride + 1))
    start = first + low * stride
    return slice(low, high), slice(start, start + (high - low - 1) * stride + 1, stride)


def _is_pointwise(geo: Geometry) -> bool:
    """Whether each output sees one place of the input, and no place is left out."""
    return {*geo.kernel, *geo.strides} == {1} and not any(map(any, geo.pads))


@functools.lru_cache(maxsize=1024)
def unrolling(
    shape: tuple[int, ...], geo: Geometry, groups: int, out: tuple[int, ...], filters: int
) -> Unrolling:
    """The way of writing out that suits an input of this shape and so many filters."""
    channels, places = shape[1] // groups, shape[0] * math.prod(out)
    few = math.prod(out) <= (_VERY_FEW if _is_pointwise(geo) else _FEW) and shape[0] > 1
    narrow = channels * math.prod(geo.kernel[1:]) < _NARROW
    heavy = filters // groups > _HEAVY * places  # cutting the filter up costs more than it saves
    whole = (narrow or heavy) and geo.kernel[0] > 1
    return Unrolling(geo, shape[2:], out, groups, channels, places, heavy, whole, few)
