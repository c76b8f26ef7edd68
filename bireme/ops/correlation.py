"""The three products of a convolution, of its filter and of its input, at any rank, grouped and
dilated: products of filters with columns of windows (see `unrolled`).

Chunk by chunk of samples, so that the columns stay in the cache; the gradient of the input of a
convolution with stride 1 is itself a convolution, unless its output is much the smaller.
"""

import functools
import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array

from . import cudnn, onednn, windows
from .products import matmul
from .unrolled import Unrolling, unrolling
from .windows import Geometry

_FEW = 1 << 18
_MANY = 512  # outputs of all samples: then BLAS gains by having the larger matrix first


def convolve(xp: Any, x: Array, w: Array, geo: Geometry, groups: int) -> Array:
    """x [N, C, in...] with w [O, C / groups, kernel...]: [N, O, out...]."""
    found = onednn.forward(x, w, geo) if xp is np else cudnn.forward(xp, x, w, geo)
    if found is not None:
        return found
    out = geo.out(x.shape[2:])
    if _is_depthwise(x, w, groups):
        return _depthwise(xp, x, w, geo, out)
    how = unrolling(x.shape, geo, groups, out, len(w))
    filters = _rows(w, how)
    y = xp.empty((len(x), groups, len(w) // groups, *out), dtype=x.dtype)

    def work(part: slice) -> None:
        for chunk, columns in _columns(xp, x, how, part, y.shape[2]):
            _multiply(xp, how, filters, columns, y[chunk])

    lanes.share(work, how.parts(xp, len(x), w.size))
    return y.reshape(len(x), len(w), *out)


def _multiply(xp: Any, how: Unrolling, filters: list[Array], columns: Array, y: Array) -> None:
    """Fill y, some samples [n, groups, O, out...], from their columns."""
    total: Array = None if how.joined else y.reshape(*y.shape[:3], -1)
    more: Array = None
    for slab in how.slabs(len(y)):
        if slab.row == 0:
            total = matmul(xp, filters[0], columns[..., slab.part], total)
        else:
            more = matmul(xp, filters[slab.row], columns[..., slab.part], more)
            total += more
    if how.joined:
        turned = how.turned(y)
        turned[:] = total.reshape(turned.shape)


def filter_gradient(
    xp: Any,
    x: Array,
    dy: Array,
    geo: Geometry,
    groups: int,
    shape: tuple[int, ...],
    out: Array = None,
) -> Array:
    """The gradient of w, from x [N, C, in...] and dy [N, O, out...]; in `out`, unless a transposed
    product is faster.
    """
    if xp is np:
        found = onednn.filter_gradient(x, dy, geo, shape, out)
    else:
        found = cudnn.filter_gradient(xp, x, dy, geo, shape)
    if found is not None:
        return found
    how = unrolling(x.shape, geo, groups, dy.shape[2:], shape[0])
    dy = dy.reshape(len(dy), groups, shape[0] // groups, *dy.shape[2:])
    wide = how.inside > dy.shape[2] and how.places > _MANY
    direct = out is not None and how.whole and not wide and out.dtype == x.dtype
    total = out.reshape(groups, dy.shape[2], -1) if direct else None
    sums: dict[int, list[Array]] = {}

    def work(part: slice) -> None:
        found: list[Array] = []
        first = total if part.start == 0 else None
        for chunk, columns in _columns(xp, x, how, part, dy.shape[2]):
            flat = _flat(xp, how, dy[chunk])
            for slab in how.slabs(len(dy[chunk])):
                a, b = columns[..., slab.part], flat
                _accumulate(xp, found, slab.row, *((a, b) if wide else (b, a)), first)
        sums[part.start] = found

    lanes.share(work, how.parts(xp, len(x), math.prod(shape)))
    parts = [sums[start] for start in sorted(sums)]
    rows = [functools.reduce(operator.iadd, row) for row in zip(*parts, strict=True)]
    shaped = (*shape[:2], *how.taps)
    rows = [(row.swapaxes(1, 2) if wide else row).reshape(shaped) for row in rows]
    return rows[0] if how.whole else xp.concatenate(rows, axis=2)


def _accumulate(
    xp: Any, found: list[Array], row: int, a: Array, b: Array, first: Array = None
) -> None:
    """Add the sum over samples of a [n, groups, p, out] times b [n, groups, q, out] transposed to
    what is found for this row of the filter; the first term may go to `first`.
    """
    b = b.swapaxes(-1, -2)
    into = first if len(found) == row else None
    if len(a) > 1 and len(a) * a.shape[2] * b.shape[3] <= _FEW:
        terms = iter([xp.add.reduce(xp.matmul(a, b), axis=0, out=into)])
    else:
        targets = itertools.chain([into], itertools.repeat(None))
        terms = (matmul(xp, *factors) for factors in zip(a, b, targets, strict=False))
    for term in terms:
        if len(found) == row:
            found.append(term)
        else:
            found[row] += term


def input_gradient(
    xp: Any, dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """The gradient of x of this shape, from dy [N, O, out...] and w: the transposed convolution."""
    if xp is np:
        found = onednn.input_gradient(dy, w, geo, shape)
    else:
        found = cudnn.input_gradient(xp, dy, w, geo, shape)
    if found is not None:
        return found
    back = _backwards(dy, w, geo, groups, shape)
    if back is None:
        return _scattered(xp, dy, w, geo, groups, shape)
    flipped = w.swapaxes(0, 1)[(..., *[slice(None, None, -1)] * len(geo.kernel))]
    return convolve(xp, dy, flipped, back, 1)


def _backwards(
    dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Geometry | None:
    """The convolution of dy that gives the input's gradient, where there is one and it pays."""
    if set(geo.strides) != {1} or set(geo.dilations) != {1} or groups != 1:
        return None
    wider = w.shape[0] * math.prod(shape[2:]) > 1.5 * w.shape[1] * math.prod(dy.shape[2:])
    heavy = w.size > 16 * dy.size  # turning the filter costs more than adding up columns
    if (wider or heavy) and math.prod(geo.kernel) > 1:
        return None
    axes = zip(geo.kernel, geo.pads, shape[2:], dy.shape[2:], strict=True)
    pads = tuple((k - 1 - lo, n - m + lo) for k, (lo, _), n, m in axes)
    return geo._replace(pads=pads) if all(lo >= 0 and hi >= 0 for lo, hi in pads) else None


def _scattered(
    xp: Any, dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """Columns of gradients, added up where the windows were."""
    how = unrolling(shape, geo, groups, dy.shape[2:], len(w))
    dx = xp.empty((shape[0], groups, shape[1] // groups, *shape[2:]), dtype=dy.dtype)
    filters = [row.swapaxes(-1, -2) for row in _rows(w, how)]
    dy = dy.reshape(len(dy), groups, len(w) // groups, *dy.shape[2:])

    def work(part: slice) -> None:
        for chunk in how.chunks(xp, part, dy.itemsize, dy.shape[2]):
            space = how.space(xp, len(dy[chunk]), dy.dtype)
            columns, flat = how.flat(space), _flat(xp, how, dy[chunk])
            if how.filter_rows == 1:
                matmul(xp, filters[0], flat, columns)
            else:
                columns[:] = 0
                for slab in how.slabs(len(dy[chunk])):
                    columns[..., slab.part] += matmul(xp, filters[slab.row], flat)
            how.fold(xp, space, dx[chunk])

    lanes.share(work, how.parts(xp, len(dy), w.size))
    return dx.reshape(shape)


# -- pieces of them ----------------------------------------------------------------------------
def _rows(w: Array, how: Unrolling) -> list[Array]:
    """The rows of the filter that meet one slab each, as [groups, O, inside]."""
    shape = (how.groups, len(w) // how.groups, how.inside)
    if how.whole:
        return [w.reshape(shape)]
    return [w[:, :, k].reshape(shape) for k in range(w.shape[2])]


def _columns(
    xp: Any, x: Array, how: Unrolling, part: slice, filters: int
) -> Iterator[tuple[slice, Array]]:
    """Chunks of a part of the samples, each with its columns [n, groups, inside, ...]."""
    x = x.reshape(len(x), how.groups, how.channels, *x.shape[2:])
    space, held = None, 0
    for chunk in how.chunks(xp, part, x.itemsize, filters):
        if how.direct:
            yield chunk, x[chunk].reshape(-1, how.groups, how.channels, math.prod(how.out))
            continue
        samples = chunk.stop - chunk.start
        if space is None or samples != held:
            space, held = how.space(xp, samples, x.dtype), samples
        how.fill(xp, space, x[chunk])
        yield chunk, how.flat(space)


def _flat(xp: Any, how: Unrolling, y: Array) -> Array:
    """Some samples [n, groups, O, out...] as matrices that match columns."""
    if not how.joined:
        return y.reshape(*y.shape[:3], -1)
    turned = xp.ascontiguousarray(how.turned(y))
    return turned.reshape(*turned.shape[:3], -1)


def _is_depthwise(x: Array, w: Array, groups: int) -> bool:
    return groups > 1 and groups == x.shape[1] == w.shape[0]


def _depthwise(xp: Any, x: Array, w: Array, geo: Geometry, out: tuple[int, ...]) -> Array:
    """One filter per channel: a weighted sum of shifted arrays."""
    border = windows.padded(xp, x, geo)
    y = xp.zeros((*x.shape[:2], *out), dtype=x.dtype)
    for offset in itertools.product(*map(range, geo.kernel)):
        weight = w[(slice(None), 0, *offset)].reshape(-1, *[1] * len(out))
        y += border[(..., *windows.tap(geo, offset, out))] * weight
    return y
