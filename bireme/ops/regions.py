"""Maps of one size out of regions of any size: roi_pool, roi_align, psroi_pool.

roi_align interpolates along y and along x independently, so a region is two small
matrices around its part of the map.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import offsets_of, owners
from .table import GradOp, Infer, op


def images_of(lod: Any, RoisLod: Array | None, count: int) -> Array:
    """The image of each region."""
    if RoisLod is not None:
        return owners(to_host(RoisLod))
    found = owners(offsets_of(lod, "a pooling of regions"))
    if len(found) != count:
        raise InvalidArgument(f"the LoD of the regions ends at {len(found)} of {count}")
    return found


def _pooled_rule(ctx: Infer) -> None:
    x, rois = ctx.x("X"), ctx.x("ROIs")
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 4:
        raise InvalidArgument(
            f"{ctx.op.type}: maps {list(x.shape)} and regions {list(rois.shape)}",
            hint="maps are [N, C, H, W], regions [R, 4] with a LoD over the images",
        )
    channels = ctx.attr("output_channels") if ctx.op.type == "psroi_pool" else x.shape[1]
    shape = (rois.shape[0], channels, ctx.attr("pooled_height"), ctx.attr("pooled_width"))
    ctx.set("Out", shape, like=x, lod_level=0)
    ctx.set("Argmax", shape, VarType.INT64, lod_level=0)


def half_up(value: Array) -> Array:
    """Rounded as C does: halves away from zero."""
    return np.sign(value) * np.floor(np.abs(value) + 0.5)


def _bins(start: Any, size: Any, count: int, limit: int) -> list[tuple[int, int]]:
    """First and last + 1 pixel of each of `count` parts of a stretch, cut at the map."""
    edges = np.arange(count + 1, dtype=np.float32) * np.float32(size)
    start = np.float32(start)
    low = np.clip(np.floor(edges[:-1] + start), 0, limit).astype(int)
    high = np.clip(np.ceil(edges[1:] + start), 0, limit).astype(int)
    return list(zip(low.tolist(), high.tolist(), strict=True))


# -- roi_pool ----------------------------------------------------------------------------------
@op(
    "roi_pool",
    infer=_pooled_rule,
    grad=GradOp(uses=("X", "ROIs", "RoisLod", "Argmax"), wrt=("X",), of=("Out",)),
    returns="Out Argmax",
    lod=None,
)
def roi_pool(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    RoisLod: Array | None,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Array, Array]:
    """The greatest value of each part of each region (arXiv 1504.08083), and where it is; 0 and -1
    where a part is empty.
    """
    channels, height, width = X.shape[1:]
    image = images_of(ROIs_lod, RoisLod, len(ROIs))
    out = xp.zeros((len(ROIs), channels, pooled_height, pooled_width), X.dtype)
    place = xp.full(out.shape, -1, "int64")
    regions = half_up(to_host(ROIs) * np.float32(spatial_scale))
    for i, (left, top, right, bottom) in enumerate(regions.tolist()):
        tall, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
        columns = _bins(left, np.float32(wide) / pooled_width, pooled_width, width)
        for py, (y0, y1) in enumerate(
            _bins(top, np.float32(tall) / pooled_height, pooled_height, height)
        ):
            for px, (x0, x1) in enumerate(columns):
                if y1 > y0 and x1 > x0:
                    part = X[image[i], :, y0:y1, x0:x1].reshape(channels, -1)
                    at = part.argmax(axis=1)
                    out[i, :, py, px] = part[xp.arange(channels), at]
                    row, column = at // (x1 - x0) + y0, at % (x1 - x0) + x0
                    place[i, :, py, px] = row * width + column
    return out, place


@op("roi_pool_grad", lod=None)
def roi_pool_grad(
    xp: Any, X: Array, ROIs: Array, ROIs_lod: Any, RoisLod: Array | None, Argmax: Array, dOut: Array
) -> Array:
    image = xp.asarray(images_of(ROIs_lod, RoisLod, len(ROIs)))
    flat = xp.zeros((X.shape[0], X.shape[1], X.shape[2] * X.shape[3]), X.dtype)
    channel = xp.arange(X.shape[1])[None, :, None, None]
    owner = xp.broadcast_to(image[:, None, None, None], Argmax.shape)
    channel = xp.broadcast_to(channel, Argmax.shape)
    hit = Argmax >= 0
    xp.add.at(flat, (owner[hit], channel[hit], Argmax[hit]), dOut[hit])
    return flat.reshape(X.shape)


# -- roi_align --------------------------------------------------------------------------------
def _sampled(start: float, size: float, parts: int, points: int, limit: int) -> Array:
    """The matrix [parts, limit] that averages `points` interpolated values in each part."""
    bin_size = size / parts
    at = start + (np.arange(parts * points) + 0.5) * bin_size / points
    inside = (at >= -1) & (at <= limit)
    at = np.clip(at, 0, limit - 1)
    low = np.minimum(at.astype(int), max(limit - 2, 0))
    share = at - low
    matrix = np.zeros((parts * points, limit))
    rows = np.arange(len(at))
    np.add.at(matrix, (rows, low), 1 - share)
    np.add.at(matrix, (rows, np.minimum(low + 1, limit - 1)), share)
    return (matrix * inside[:, None]).reshape(parts, points, limit).mean(axis=1)


def _aligned(box: Array, attrs: Any, height: int, width: int) -> tuple[Array, Array]:
    left, top, right, bottom = box
    tall, wide = max(bottom - top, 1.0), max(right - left, 1.0)
    rows, columns, ratio = attrs
    down = ratio if ratio > 0 else int(np.ceil(tall / rows))
    along = ratio if ratio > 0 else int(np.ceil(wide / columns))
    return (
        _sampled(top, tall, rows, down, height),
        _sampled(left, wide, columns, along, width),
    )


Matrices = Callable[[Array, Any, int, int], tuple[Array, Array]]


def _each(
    xp: Any, X: Array, ROIs: Array, image: Array, matrices: Matrices, scale: float, attrs: Any
) -> Iterator[tuple[Any, Any, Any, Array, Array]]:
    """For each region: its image, the rows and columns that it touches, and its two matrices."""
    boxes = to_host(ROIs).astype(np.float32) * np.float32(scale)
    for which, box in zip(image, boxes.astype(np.float64), strict=True):
        down, along = matrices(box, attrs, X.shape[2], X.shape[3])
        rows, columns = _touched(down), _touched(along)
        kind = X.dtype
        pair = xp.asarray(down[:, rows], dtype=kind), xp.asarray(along[:, columns], dtype=kind)
        yield which, rows, columns, *pair


def _touched(matrix: Array) -> slice:
    used = np.flatnonzero(matrix.any(axis=0))
    return slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)


def _pool(xp: Any, X: Array, regions: Any, shape: Any) -> Array:
    out = xp.empty(shape, X.dtype)
    for i, (image, rows, columns, down, along) in enumerate(regions):
        out[i] = xp.matmul(xp.matmul(down, X[image, :, rows, columns]), along.T)
    return out


def _pool_grad(xp: Any, X: Array, regions: Any, dOut: Array) -> Array:
    dx = xp.zeros(X.shape, X.dtype)
    for i, (image, rows, columns, down, along) in enumerate(regions):
        dx[image, :, rows, columns] += xp.matmul(xp.matmul(down.T, dOut[i]), along)
    return dx


_ALIGN = GradOp(uses=("X", "ROIs", "RoisLod"), wrt=("X",))


@op("roi_align", infer=_pooled_rule, grad=_ALIGN, lod=None)
def roi_align(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    RoisLod: Array | None,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> Array:
    """The mean of interpolated points in each part of each region (arXiv 1703.06870)."""
    image = images_of(ROIs_lod, RoisLod, len(ROIs))
    attrs = (pooled_height, pooled_width, sampling_ratio)
    regions = _each(xp, X, ROIs, image, _aligned, spatial_scale, attrs)
    return _pool(xp, X, regions, (len(ROIs), X.shape[1], *attrs[:2]))


@op("roi_align_grad", lod=None)
def roi_align_grad(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    RoisLod: Array | None,
    dOut: Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> Array:
    image = images_of(ROIs_lod, RoisLod, len(ROIs))
    attrs = (pooled_height, pooled_width, sampling_ratio)
    return _pool_grad(xp, X, _each(xp, X, ROIs, image, _aligned, spatial_scale, attrs), dOut)


# -- psroi_pool --------------------------------------------------------------------------------
_PLACED = GradOp(uses=("X", "ROIs"), wrt=("X",))


def _placed(
    X: Array, ROIs: Array, lod: Any, channels: int, rows: int, columns: int, scale: float
) -> Iterator[tuple[Any, ...]]:
    """(region, row, column, image, channels, part of the map, its size) of every part."""
    image = images_of(lod, None, len(ROIs))
    boxes = half_up(to_host(ROIs).astype(np.float32)) + np.array([0, 0, 1, 1], np.float32)
    for i, (left, top, right, bottom) in enumerate((boxes * np.float32(scale)).tolist()):
        tall, wide = max(bottom - top, 0.1), max(right - left, 0.1)
        across = _bins(left, np.float32(wide) / columns, columns, X.shape[3])
        for py, (y0, y1) in enumerate(_bins(top, np.float32(tall) / rows, rows, X.shape[2])):
            for px, (x0, x1) in enumerate(across):
                if y1 > y0 and x1 > x0:
                    own = slice(py * columns + px, channels * rows * columns, rows * columns)
                    part = (image[i], own, slice(y0, y1), slice(x0, x1))
                    yield i, py, px, part, (y1 - y0) * (x1 - x0)


@op("psroi_pool", infer=_pooled_rule, grad=_PLACED, lod=None)
def psroi_pool(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Array:
    """The mean of each part of each region, in channels that belong to that part (arXiv
    1605.06409).
    """
    out = xp.zeros((len(ROIs), output_channels, pooled_height, pooled_width), X.dtype)
    attrs = (output_channels, pooled_height, pooled_width, spatial_scale)
    for i, py, px, part, size in _placed(X, ROIs, ROIs_lod, *attrs):
        out[i, :, py, px] = X[part].sum(axis=(1, 2)) / size
    return out


@op("psroi_pool_grad", lod=None)
def psroi_pool_grad(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    dOut: Array,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Array:
    dx = xp.zeros(X.shape, X.dtype)
    attrs = (output_channels, pooled_height, pooled_width, spatial_scale)
    for i, py, px, part, size in _placed(X, ROIs, ROIs_lod, *attrs):
        dx[part] += (dOut[i, :, py, px] / size)[:, None, None]
    return dx
