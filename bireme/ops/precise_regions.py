"""Precise pooling of regions (arXiv 1807.11590): the integral of the interpolated map over each
part, so that the gradient of a region's edges exists.

The integral is a product of one along y and one along x.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument

from .regions import images_of
from .segments import from_lengths
from .table import GradOp, Infer, op


def _rule(ctx: Infer) -> None:
    x, rois = ctx.x("X"), ctx.x("ROIs")
    if len(x.shape) != 4 or len(rois.shape) != 2 or rois.shape[1] != 4:
        raise InvalidArgument(
            f"prroi_pool: maps {list(x.shape)} and regions {list(rois.shape)}",
            hint="maps are [N, C, H, W], regions [R, 4]",
        )
    shape = (rois.shape[0], x.shape[1], ctx.attr("pooled_height"), ctx.attr("pooled_width"))
    ctx.set("Out", shape, like=x, lod_level=0)


def _hat(at: Array, pixel: Array) -> Array:
    """How much of each pixel a place holds."""
    return np.maximum(1 - np.abs(at - pixel), 0)


def _below(at: Array, pixel: Array) -> Array:
    """The integral of `_hat` up to a place."""
    t = np.clip(at - pixel, -1, 1)
    return np.where(t < 0, (t + 1) ** 2 / 2, 1 - (1 - t) ** 2 / 2)


def _means(start: float, end: float, parts: int, limit: int) -> tuple[Array, Array, Array]:
    """The matrix [parts, limit] of means over each part, and its derivatives by start and end."""
    width = max(end - start, 0.0) / parts
    if width == 0:
        return (np.zeros((parts, limit)),) * 3
    pixel = np.arange(limit)
    low = start + np.arange(parts)[:, None] * width
    high = low + width
    mean = (_below(high, pixel) - _below(low, pixel)) / width
    by_low, by_high = (mean - _hat(low, pixel)) / width, (_hat(high, pixel) - mean) / width
    share = np.arange(parts)[:, None] / parts
    after = share + 1 / parts
    return mean, by_low * (1 - share) + by_high * (1 - after), by_low * share + by_high * after


def _each(xp: Any, x: Array, rois: Array, lod: Any, counts: Array | None, attrs: Any) -> Any:
    """For each region: its number, its image, and its matrices along y and along x."""
    scale, rows, columns = attrs
    given = lod if counts is None else (from_lengths(to_host(counts).astype(np.int64)),)
    image = images_of(given, None, len(rois))
    boxes = (to_host(rois).astype(np.float32) * np.float32(scale)).astype(np.float64)
    for i, (left, top, right, bottom) in enumerate(boxes):
        down = _means(top, bottom, rows, x.shape[2])
        along = _means(left, right, columns, x.shape[3])
        yield i, image[i], *([xp.asarray(m, dtype=x.dtype) for m in pair] for pair in (down, along))


@op(
    "prroi_pool",
    infer=_rule,
    grad=GradOp(uses=("X", "ROIs", "BatchRoINums"), wrt=("X", "ROIs")),
    lod=None,
)
def prroi_pool(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    BatchRoINums: Array | None,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> Array:
    """The mean of the interpolated map over each part of each region; 0 of an empty one."""
    attrs = spatial_scale, pooled_height, pooled_width
    out = xp.empty((len(ROIs), X.shape[1], pooled_height, pooled_width), X.dtype)
    for i, image, down, along in _each(xp, X, ROIs, ROIs_lod, BatchRoINums, attrs):
        out[i] = xp.matmul(xp.matmul(down[0], X[image]), along[0].T)
    return out


@op("prroi_pool_grad", lod=None)
def prroi_pool_grad(
    xp: Any,
    X: Array,
    ROIs: Array,
    ROIs_lod: Any,
    BatchRoINums: Array | None,
    dOut: Array,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
) -> tuple[Array, Array]:
    attrs = spatial_scale, pooled_height, pooled_width
    of_x, of_rois = xp.zeros_like(X), xp.zeros_like(ROIs)
    for i, image, down, along in _each(xp, X, ROIs, ROIs_lod, BatchRoINums, attrs):
        of_x[image] += xp.matmul(xp.matmul(down[0].T, dOut[i]), along[0])
        across = xp.matmul(X[image], along[0].T)
        for side in (0, 1):
            by_x = xp.matmul(xp.matmul(down[0], X[image]), along[1 + side].T)
            of_rois[i, 2 * side] = (dOut[i] * by_x).sum()
            of_rois[i, 2 * side + 1] = (dOut[i] * xp.matmul(down[1 + side], across)).sum()
    return of_x, of_rois * X.dtype.type(spatial_scale)
