"""Convolutions of any rank, grouped and dilated, and their transposes, as matrix products over
windows.

One product per chunk of samples, so that the unrolled windows stay in the cache; the gradient of
the input of a convolution with stride 1 is itself a convolution.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bireme.errors import InvalidArgument
from bireme.runtime.arrays import Array, block_bytes

from . import cudnn, windows
from .table import GradOp, Infer, op
from .windows import Geometry, channels_first, channels_last, geometry, is_channels_last

_SMALL = 256


# -- the three products ------------------------------------------------------------------------
def convolve(xp: Any, x: Array, w: Array, geo: Geometry, groups: int) -> Array:
    """x [N, C, in...] with w [O, C / groups, kernel...]: [N, O, out...]."""
    if xp is not np and (found := cudnn.forward(xp, x, w, geo)) is not None:
        return found
    n, out = len(x), geo.out(x.shape[2:])
    if _is_depthwise(x, w, groups):
        return _depthwise(xp, x, w, geo, out)
    weights = w.reshape(groups, w.shape[0] // groups, -1)
    y = xp.empty((n, groups, weights.shape[1], math.prod(out)), dtype=x.dtype)
    for chunk in _columns(xp, x, geo, groups, out):
        if chunk.joined:
            chunk.split(y)[:] = xp.matmul(weights, chunk.columns).reshape(chunk.split(y).shape)
        else:
            xp.matmul(weights, chunk.columns, out=y[chunk.part])
    return y.reshape(n, w.shape[0], *out)


def filter_gradient(
    xp: Any, x: Array, dy: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """The gradient of w, from x [N, C, in...] and dy [N, O, out...]."""
    if xp is not np and (found := cudnn.filter_gradient(xp, x, dy, geo, shape)) is not None:
        return found
    out = dy.shape[2:]
    dy = dy.reshape(len(dy), groups, shape[0] // groups, -1)
    total = xp.zeros((groups, shape[0] // groups, math.prod(shape[1:])), dtype=x.dtype)
    for chunk in _columns(xp, x, geo, groups, out):
        turned = chunk.columns.swapaxes(-1, -2)
        if chunk.joined:
            total += xp.matmul(chunk.split(dy).reshape(*total.shape[:2], -1), turned)
        else:
            for one, columns in zip(dy[chunk.part], turned, strict=True):
                total += xp.matmul(one, columns)
    return total.reshape(shape)


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
    return convolve(xp, dy, xp.ascontiguousarray(flipped), back, 1)


def _backwards(
    dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Geometry | None:
    """The convolution of dy that gives the input's gradient, where there is one and it pays."""
    if set(geo.strides) != {1} or set(geo.dilations) != {1} or groups != 1:
        return None
    wider = w.shape[0] * math.prod(shape[2:]) > 1.5 * w.shape[1] * math.prod(dy.shape[2:])
    if wider and math.prod(geo.kernel) > 1:
        return None
    axes = zip(geo.kernel, geo.pads, shape[2:], dy.shape[2:], strict=True)
    pads = tuple((k - 1 - lo, n - m + lo) for k, (lo, _), n, m in axes)
    return geo._replace(pads=pads) if all(lo >= 0 and hi >= 0 for lo, hi in pads) else None


def _scattered(
    xp: Any, dy: Array, w: Array, geo: Geometry, groups: int, shape: tuple[int, ...]
) -> Array:
    """Spread each output over its window and add up."""
    n, out = len(dy), dy.shape[2:]
    spatial = [k + lo + hi for k, (lo, hi) in zip(shape[2:], geo.pads, strict=True)]
    dx = xp.zeros((n, groups, shape[1] // groups, *spatial), dtype=dy.dtype)
    weights = w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)
    dy = dy.reshape(n, groups, w.shape[0] // groups, -1)
    each = weights.shape[1] * groups * dy.shape[-1] * dy.itemsize
    size = max(1, block_bytes(xp) // max(1, each))
    for start in range(0, n, size):
        part = slice(start, start + size)
        columns = xp.matmul(weights, dy[part])
        columns = columns.reshape(*columns.shape[:2], shape[1] // groups, *geo.kernel, *out)
        for offset in itertools.product(*map(range, geo.kernel)):
            place = (part, slice(None), slice(None), *windows.tap(geo, offset, out))
            dx[place] += columns[(slice(None), slice(None), slice(None), *offset)]
    dx = dx.reshape(n, shape[1], *spatial)
    return xp.ascontiguousarray(dx[(..., *windows.inner(shape[2:], geo))])


class _Chunk(NamedTuple):
    """Some samples unrolled: `columns` [samples, groups, C / groups * kernel, out].

    Where the output is small the samples are `joined`: [groups, ..., samples * out], one product
    for all.
    """

    part: slice
    columns: Array
    joined: bool

    def split(self, y: Array) -> Array:
        """This chunk of y [N, groups, O, out], as [groups, O, samples, out]; a view."""
        return y[self.part].transpose(1, 2, 0, 3)


def _columns(
    xp: Any, x: Array, geo: Geometry, groups: int, out: tuple[int, ...]
) -> Iterator[_Chunk]:
    n, inside = len(x), x.shape[1] // groups * math.prod(geo.kernel)
    if math.prod(geo.kernel) == 1 and set(geo.strides) == {1} and not any(map(any, geo.pads)):
        yield _Chunk(slice(0, n), x.reshape(n, groups, inside, -1), joined=False)
        return
    each = inside * groups * math.prod(out) * x.itemsize
    size = max(1, min(n, 2 * block_bytes(xp) // max(1, each)))
    joined = size > 1 and math.prod(out) <= _SMALL
    rank = len(out)
    order = (*range(1, rank + 2), 0, *range(rank + 2, 2 * rank + 2))
    space = None
    for start in range(0, n, size):
        part = slice(start, min(start + size, n))
        view = windows.view(xp, windows.padded(xp, x[part], geo), geo, out)
        view = view.transpose(order) if joined else view
        if space is None or space.shape != view.shape:
            space = xp.empty(view.shape, dtype=x.dtype)
        xp.copyto(space, view)
        shape = (groups, inside, -1) if joined else (len(space), groups, inside, -1)
        yield _Chunk(part, space.reshape(shape), joined)


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
