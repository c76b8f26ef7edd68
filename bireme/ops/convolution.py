"""Convolutions of any rank, grouped and dilated, and their transposes, as products of filters with
columns of windows (see `unrolled`).

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

from bireme.errors import InvalidArgument
from bireme.runtime import lanes
from bireme.runtime.arrays import Array

from . import cudnn, windows
from .products import matmul
from .table import GradOp, Infer, op
from .unrolled import Unrolling, unrolling
from .windows import Geometry, channels_first, channels_last, geometry, is_channels_last

_FEW = 1 << 18
_MANY = 512  # outputs of all samples: then BLAS gains by having the larger matrix first


# -- the three products ------------------------------------------------------------------------
def convolve(xp: Any, x: Array, w: Array, geo: Geometry, groups: int) -> Array:
    """x [N, C, in...] with w [O, C / groups, kernel...]: [N, O, out...]."""
    if xp is not np and (found := cudnn.forward(xp, x, w, geo)) is not None:
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

    lanes.spread(xp, work, len(x), _cost(w.size, y), how.pieces)
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
    xp: Any, x: Array, dy: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """The gradient of w, from x [N, C, in...] and dy [N, O, out...]."""
    if xp is not np and (found := cudnn.filter_gradient(xp, x, dy, geo, shape)) is not None:
        return found
    how = unrolling(x.shape, geo, groups, dy.shape[2:], shape[0])
    dy = dy.reshape(len(dy), groups, shape[0] // groups, *dy.shape[2:])
    wide = how.inside > dy.shape[2] and how.places > _MANY
    sums: dict[int, list[Array]] = {}

    def work(part: slice) -> None:
        found: list[Array] = []
        for chunk, columns in _columns(xp, x, how, part, dy.shape[2]):
            flat = _flat(xp, how, dy[chunk])
            for slab in how.slabs(len(dy[chunk])):
                pair = (columns[..., slab.part], flat)
                _accumulate(xp, found, slab.row, *(pair if wide else pair[::-1]))
        sums[part.start] = found

    lanes.spread(xp, work, len(x), _cost(math.prod(shape), dy), how.pieces)
    parts = [sums[start] for start in sorted(sums)]
    rows = [functools.reduce(operator.iadd, row) for row in zip(*parts, strict=True)]
    shaped = (*shape[:2], *how.taps)
    rows = [(row.swapaxes(1, 2) if wide else row).reshape(shaped) for row in rows]
    return rows[0] if how.whole else xp.concatenate(rows, axis=2)


def _accumulate(xp: Any, found: list[Array], row: int, a: Array, b: Array) -> None:
    """Add the sum over samples of a [n, groups, p, out] times b [n, groups, q, out] transposed to
    what is found for this row of the filter.
    """
    b = b.swapaxes(-1, -2)
    if len(a) > 1 and len(a) * a.shape[2] * b.shape[3] <= _FEW:
        terms = iter([xp.matmul(a, b).sum(axis=0)])
    else:
        terms = (matmul(xp, one, other) for one, other in zip(a, b, strict=True))
    for term in terms:
        if len(found) == row:
            found.append(term)
        else:
            found[row] += term


def input_gradient(
    xp: Any, dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """The gradient of x of this shape, from dy [N, O, out...] and w: the transposed convolution."""
    if xp is not np and (found := cudnn.input_gradient(xp, dy, w, geo, shape)) is not None:
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

    lanes.spread(xp, work, len(dy), _cost(w.size, dy), how.pieces)
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


def _cost(size: int, outputs: Array) -> int:
    """What a convolution with `size` weights costs, as elements touched."""
    places: int = len(outputs) * math.prod(outputs.shape[3:])
    return size * places // 16


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


# -- rows --------------------------------------------------------------------------------------
def _conv_shape(ctx: Infer) -> None:
    x, w = ctx.x("Input"), ctx.x("Filter")
    last = is_channels_last(ctx.attr("data_format"))
    channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    groups = ctx.attr("groups")
    if len(x.shape) != len(w.shape):
        raise InvalidArgument(f"input of rank {len(x.shape)}, filter of rank {len(w.shape)}")
    if channels >= 0 and channels != w.shape[1] * groups:
        raise InvalidArgument(
            f"the input has {channels} channels, the filter wants {w.shape[1]} x {groups} groups"
        )
    out = _geometry(ctx, spatial, w.shape[2:]).out(spatial)
    if any(n == 0 or n < -1 for n in out):
        raise InvalidArgument(f"a filter {list(w.shape[2:])} does not fit an input {list(spatial)}")
    shape = (x.shape[0], *out, w.shape[0]) if last else (x.shape[0], w.shape[0], *out)
    ctx.set("Output", shape, like=x)


def _geometry(ctx: Infer, spatial: Any, kernel: Any) -> Geometry:
    names = ("strides", "paddings", "dilations", "padding_algorithm")
    return geometry(spatial, kernel, *map(ctx.attr, names))


def _transpose_shape(ctx: Infer) -> None:
    x, w = ctx.x("Input"), ctx.x("Filter")
    last = is_channels_last(ctx.attr("data_format"))
    spatial = x.shape[1:-1] if last else x.shape[2:]
    geo = _geometry(ctx, spatial, w.shape[2:])
    out = tuple(ctx.attr("output_size")) or _transposed_size(spatial, geo)
    channels = w.shape[1] * ctx.attr("groups")
    shape = (x.shape[0], *out, channels) if last else (x.shape[0], channels, *out)
    ctx.set("Output", shape, like=x)


def _transposed_size(spatial: Any, geo: Geometry) -> tuple[int, ...]:
    axes = zip(spatial, geo.kernel, geo.strides, geo.pads, geo.dilations, strict=True)
    return tuple(-1 if n < 0 else (n - 1) * s - sum(p) + d * (k - 1) + 1 for n, k, s, p, d in axes)


class _Call:
    """The arguments of one call, channels first."""

    def __init__(
        self,
        x: Array,
        w: Array,
        strides: Any,
        paddings: Any,
        dilations: Any,
        algorithm: str,
        layout: str,
    ) -> None:
        self.last = is_channels_last(layout)
        self.x = channels_first(x) if self.last else x
        self.geo = geometry(self.x.shape[2:], w.shape[2:], strides, paddings, dilations, algorithm)

    def first(self, array: Array) -> Array:
        return channels_first(array) if self.last else array

    def result(self, array: Array) -> Array:
        return channels_last(array) if self.last else array


def conv(
    xp: Any,
    Input: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
) -> Array:
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    return call.result(convolve(xp, call.x, Filter, call.geo, groups))


def conv_grad(
    xp: Any,
    Input: Array,
    Filter: Array,
    dOutput: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
    need: frozenset[str],
) -> tuple[Array, Array]:
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    dy = call.first(dOutput)
    dx = dw = None
    if "Input@GRAD" in need:
        dx = call.result(input_gradient(xp, dy, Filter, call.geo, groups, call.x.shape))
    if "Filter@GRAD" in need:
        dw = filter_gradient(xp, call.x, dy, call.geo, groups, Filter.shape)
    return dx, dw


def conv_transpose(
    xp: Any,
    Input: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
    output_size: Any,
) -> Array:
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    size = tuple(output_size) or _transposed_size(call.x.shape[2:], call.geo)
    shape = (len(Input), Filter.shape[1] * groups, *size)
    geo = _reaching(call.geo, size, call.x.shape[2:])
    return call.result(input_gradient(xp, call.x, Filter, geo, groups, shape))


def conv_transpose_grad(
    xp: Any,
    Input: Array,
    Filter: Array,
    dOutput: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
    need: frozenset[str],
) -> tuple[Array, Array]:
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    dy = call.first(dOutput)
    geo = _reaching(call.geo, dy.shape[2:], call.x.shape[2:])
    dx = dw = None
    if "Input@GRAD" in need:
        dx = call.result(convolve(xp, dy, Filter, geo, groups))
    if "Filter@GRAD" in need:
        dw = filter_gradient(xp, dy, call.x, geo, groups, Filter.shape)
    return dx, dw


def _reaching(geo: Geometry, size: Any, spatial: Any) -> Geometry:
    """The geometry whose windows over `size` number `spatial`: a border behind may shrink."""
    axes = zip(size, spatial, geo.kernel, geo.strides, geo.pads, geo.dilations, strict=True)
    behind = [(m - 1) * s + d * (k - 1) + 1 - n - lo for n, m, k, s, (lo, _), d in axes]
    pads = tuple((lo, max(hi, 0)) for (lo, _), hi in zip(geo.pads, behind, strict=True))
    return geo._replace(pads=pads)


_GRAD = GradOp(uses=("Input", "Filter", "Bias"), wrt=("Input", "Filter", "Bias"))
_GRAD_3D = GradOp(uses=("Input", "Filter", "ResidualData"), wrt=("Input", "Filter"))
_RETURNS = "Input@GRAD Filter@GRAD"

for _name in ("conv2d", "depthwise_conv2d"):
    op(_name, infer=_conv_shape, grad=_GRAD)(conv)
    op(f"{_name}_grad", returns=_RETURNS)(conv_grad)
for _name in ("conv2d_transpose", "depthwise_conv2d_transpose"):
    op(_name, infer=_transpose_shape, grad=_GRAD)(conv_transpose)
    op(f"{_name}_grad", returns=_RETURNS)(conv_transpose_grad)

op("conv3d", infer=_conv_shape, grad=_GRAD_3D)(conv)
op("conv3d_grad", returns=_RETURNS)(conv_grad)
op("conv3d_transpose", infer=_transpose_shape, grad=GradOp(uses=("Input", "Filter")))(
    conv_transpose
)
op("conv3d_transpose_grad", returns=_RETURNS)(conv_transpose_grad)
