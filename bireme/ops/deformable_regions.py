"""Pooling of regions whose parts are shifted (arXiv 1703.06211, section 2.2)."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host

from .deformable import corners_of
from .regions import half_up, images_of
from .table import GradOp, Infer, op


def _rule(ctx: Infer) -> None:
    x, rois = ctx.x("Input"), ctx.x("ROIs")
    rows, columns = ctx.attr("pooled_height"), ctx.attr("pooled_width")
    shape = (rois.shape[0], ctx.attr("output_dim"), rows, columns)
    ctx.set("Output", shape, like=x, lod_level=0)
    ctx.set("TopCount", shape, like=x, lod_level=0)


class _Samples:
    """The places that are read: [regions, channels, rows, columns, points, points]."""

    def __init__(
        self, xp: Any, x: Array, rois: Array, lod: Any, trans: Array | None, attrs: dict[str, Any]
    ) -> None:
        count, channels = len(rois), attrs["output_dim"]
        rows, columns, points = (
            attrs[n] for n in ("pooled_height", "pooled_width", "sample_per_part")
        )
        boxes = half_up(to_host(rois).astype(np.float32)) + np.array([0, 0, 1, 1], np.float32)
        boxes = xp.asarray(boxes * np.float32(attrs["spatial_scale"]) - np.float32(0.5))
        self.size = xp.maximum(boxes[:, 2:] - boxes[:, :2], np.float32(0.1))
        self.part = _parts(rows, attrs["part_size"][0]), _parts(columns, attrs["part_size"][1])
        shift = xp.zeros((count, 1, 2, rows, columns), x.dtype)
        if trans is not None:
            self.classes = trans.shape[1] // 2
            split = trans.reshape(count, self.classes, 2, *trans.shape[2:])
            shift = split[:, :, :, self.part[0][:, None], self.part[1][None]]
            shift = shift * x.dtype.type(attrs["trans_std"])
        shift = xp.repeat(shift, channels // shift.shape[1], axis=1)
        self.y, self.x = (
            self._places(xp, boxes[:, 1 - axis], self.size[:, 1 - axis], shift, axis, points)
            for axis in (0, 1)
        )
        height, width = x.shape[2:]
        self.inside = (
            (self.y >= -0.5) & (self.y <= height - 0.5) & (self.x >= -0.5) & (self.x <= width - 0.5)
        )
        self.y, self.x = xp.clip(self.y, 0, height - 1), xp.clip(self.x, 0, width - 1)
        groups = attrs["group_size"]
        down = _parts(rows, groups[0])[:, None]
        along = _parts(columns, groups[1])[None]
        top = np.arange(channels)[:, None, None]
        self.channel = xp.asarray((top * groups[0] + down) * groups[1] + along)
        self.image = xp.asarray(images_of(lod, None, count))

    def _places(
        self, xp: Any, start: Array, size: Array, shift: Array, axis: int, points: int
    ) -> Array:
        """Along y (axis 0) or x (axis 1)."""
        parts = shift.shape[3 + axis]
        step = size / parts
        at = xp.arange(parts, dtype=size.dtype) * step[:, None] + start[:, None]
        at = at.reshape(len(size), 1, *((-1, 1) if axis == 0 else (1, -1)))
        at = at + shift[:, :, 1 - axis] * size[:, None, None, None]
        inner = xp.arange(points, dtype=size.dtype)
        inner = inner[:, None] if axis == 0 else inner[None]
        full = at[..., None, None] + inner * (step / points).reshape(-1, 1, 1, 1, 1, 1)
        return xp.broadcast_to(full, (*at.shape, points, points))

    def corners(self, xp: Any, size: Any) -> Any:
        ends = xp.ceil(self.y), xp.ceil(self.x)
        return corners_of(xp, self.y, self.x, ends, size, self.inside)

    def index(self, pixel: Array) -> tuple[Array, Array, Array]:
        image = self.image.reshape(-1, 1, 1, 1, 1, 1)
        return image, self.channel[None, :, :, :, None, None], pixel


def _parts(count: int, parts: int) -> Array:
    """The coarser part that each of `count` parts belongs to."""
    return np.clip(np.floor(np.arange(count) / count * parts), 0, parts - 1).astype(int)


_GRAD = GradOp(uses=("Input", "ROIs", "Trans", "TopCount"), wrt=("Input", "Trans"), of=("Output",))


@op("deformable_psroi_pooling", infer=_rule, grad=_GRAD, returns="Output TopCount", lod=None)
def deformable_psroi_pooling(
    xp: Any,
    Input: Array,
    ROIs: Array,
    ROIs_lod: Any,
    Trans: Array,
    no_trans: bool,
    spatial_scale: float,
    output_dim: int,
    group_size: Any,
    pooled_height: int,
    pooled_width: int,
    part_size: Any,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Array, Array]:
    """The mean of points in each part of each region, and how many points lie in the map."""
    samples = _Samples(xp, Input, ROIs, ROIs_lod, None if no_trans else Trans, locals())
    flat = Input.reshape(*Input.shape[:2], -1)
    corners = samples.corners(xp, Input.shape[2:])
    total = sum((flat[samples.index(c.pixel)] * c.share).sum(axis=(4, 5)) for c in corners)
    count = xp.broadcast_to(samples.inside.sum(axis=(4, 5)), total.shape).astype(Input.dtype)
    return xp.where(count > 0, total / xp.maximum(count, 1), 0).astype(Input.dtype), count


@op("deformable_psroi_pooling_grad", lod=None)
def deformable_psroi_pooling_grad(
    xp: Any,
    Input: Array,
    ROIs: Array,
    ROIs_lod: Any,
    Trans: Array,
    TopCount: Array,
    dOutput: Array,
    no_trans: bool,
    spatial_scale: float,
    output_dim: int,
    group_size: Any,
    pooled_height: int,
    pooled_width: int,
    part_size: Any,
    sample_per_part: int,
    trans_std: float,
) -> tuple[Array, Array]:
    samples = _Samples(xp, Input, ROIs, ROIs_lod, None if no_trans else Trans, locals())
    flat = Input.reshape(*Input.shape[:2], -1)
    flowing = (dOutput / xp.maximum(TopCount, 1))[..., None, None]
    of_x, by_y, by_x = xp.zeros_like(flat), 0, 0
    for corner in samples.corners(xp, Input.shape[2:]):
        index = samples.index(corner.pixel)
        xp.add.at(of_x, index, (flowing * corner.share).astype(of_x.dtype))
        meant = flat[index] * flowing
        by_y = by_y + (meant * corner.by_y).sum(axis=(4, 5))
        by_x = by_x + (meant * corner.by_x).sum(axis=(4, 5))
    of_trans = xp.zeros_like(Trans)
    if not no_trans:
        size = samples.size[:, :, None, None, None] * Input.dtype.type(trans_std)
        _add_shifts(xp, of_trans, samples, xp.stack([by_x * size[:, 0], by_y * size[:, 1]], axis=2))
    return of_x.reshape(Input.shape), of_trans


def _add_shifts(xp: Any, of_trans: Array, samples: Any, by_place: Array) -> None:
    """Sum the gradients [regions, channels, 2, rows, columns] of each coarse part."""
    count, classes = len(of_trans), samples.classes
    summed = by_place.reshape(count, classes, -1, *by_place.shape[2:]).sum(axis=2)
    split = of_trans.reshape(count, classes, 2, *of_trans.shape[2:])
    down, along = samples.part
    for i, row in enumerate(down):
        for j, column in enumerate(along):
            split[:, :, :, row, column] += summed[:, :, :, i, j]
