"""What the mask head of a detector is trained on: the polygons of each object, drawn within the
regions that were matched to it.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .boxes import overlaps
from .segments import offsets_of
from .table import Infer, no_gradient, op
from .targets import rows_of

_FINER = 5.0  # steps within a pixel in which outlines are followed


def _rule(ctx: Infer) -> None:
    rois = ctx.x("Rois")
    wide = ctx.attr("num_classes") * ctx.attr("resolution") ** 2
    ctx.set("MaskRois", (-1, 4), like=rois, lod_level=1)
    ctx.set("RoiHasMaskInt32", (-1, 1), VarType.INT32, lod_level=1)
    ctx.set("MaskInt32", (-1, wide), VarType.INT32, lod_level=1)


@op(
    "generate_mask_labels",
    infer=_rule,
    grad=no_gradient,
    returns="MaskRois RoiHasMaskInt32 MaskInt32",
    lod=None,
)
def generate_mask_labels(
    xp: Any,
    ImInfo: Array,
    GtClasses: Array,
    GtClasses_lod: Any,
    IsCrowd: Array,
    GtSegms: Array,
    GtSegms_lod: Any,
    Rois: Array,
    Rois_lod: Any,
    LabelsInt32: Array,
    num_classes: int,
    resolution: int,
) -> tuple[WithLoD, ...]:
    """The foreground regions of each image, which they are among its regions, and for each the mask
    of the nearest object in the columns of its class; -1 in all others (arXiv 1703.06870).
    """
    if len(GtSegms_lod or ()) != 3:
        raise InvalidArgument(
            f"generate_mask_labels: gt_segms has {len(GtSegms_lod or ())} levels of LoD",
            hint="it is a sequence of objects, of polygons, of points [points, 2]",
        )
    rois, label = to_host(Rois), to_host(LabelsInt32).reshape(-1)
    kept = (to_host(GtClasses).reshape(-1) > 0) & (to_host(IsCrowd).reshape(-1) == 0)
    of_rois = pairwise(offsets_of(Rois_lod, "generate_mask_labels"))
    of_objects = pairwise(offsets_of(GtClasses_lod, "generate_mask_labels"))
    found = []
    for (a, b), (c, d), info in zip(of_rois, of_objects, to_host(ImInfo), strict=True):
        objects = [_polygons(GtSegms, GtSegms_lod, i) for i in range(c, d) if kept[i]]
        parts = _of_image(rois[a:b], label[a:b], objects, info[2], resolution)
        found.append((*parts[:2], _by_class(*parts[2:], num_classes)))
    widths = (4, 1, num_classes * resolution**2)
    kinds = (rois.dtype, np.int32, np.int32)
    rows = zip(zip(*found, strict=True), kinds, widths, strict=True)
    return tuple(rows_of(xp, list(part), kind, width) for part, kind, width in rows)


def _polygons(points: Array, lod: Any, which: int) -> list[Array]:
    """The polygons [points, 2] of an object."""
    first, last = lod[1][which : which + 2]
    return [to_host(points)[a:b] for a, b in pairwise(lod[2][first : last + 1])]


def _of_image(
    rois: Array, label: Array, objects: list[list[Array]], scale: float, size: int
) -> tuple[Array, Array, Array, Array]:
    """(regions, which they are, their masks [regions, size, size], their classes)."""
    front = np.flatnonzero(label > 0)
    if not (len(front) and objects):
        back = np.flatnonzero(label == 0)[:1]
        return rois[back], back, np.full((len(back), size, size), -1), label[back]
    boxes = rois[front] / scale
    around = np.array([_box(polygons) for polygons in objects], boxes.dtype)
    nearest = overlaps(np, boxes, around, 1.0).argmax(axis=1)
    masks = [_mask(objects[i], box, size) for i, box in zip(nearest, boxes, strict=True)]
    return rois[front], front, np.stack(masks), label[front]


def _box(polygons: list[Array]) -> list[float]:
    points = np.concatenate(polygons)
    return [*points.min(axis=0), *points.max(axis=0)]


def _by_class(masks: Array, label: Array, classes: int) -> Array:
    out = np.full((len(masks), classes, masks[0].size if len(masks) else 0), -1, np.int32)
    held = np.flatnonzero(label > 0)
    out[held, label[held]] = masks.reshape(len(masks), -1)[held]
    return out.reshape(len(masks), -1)


def _mask(polygons: list[Array], box: Array, size: int) -> Array:
    """The union of polygons [size, size], seen through a box."""
    extent = np.maximum(box[2:] - box[:2], 1)
    drawn = [_filled((points - box[:2]) * size / extent, size) for points in polygons]
    return np.logical_or.reduce(drawn)


def _filled(points: Array, size: int) -> Array:
    """The pixels within a polygon: along each column they change where its outline crosses."""
    corners = np.trunc(_FINER * points.astype(np.float64) + 0.5)
    ends = np.roll(corners, -1, axis=0)
    line = np.concatenate([_outline(a, b) for a, b in zip(corners, ends, strict=True)])
    crossed = np.flatnonzero(np.diff(line[:, 0]))
    before, after = line[crossed], line[crossed + 1]
    column = np.where(after[:, 0] < before[:, 0], after[:, 0], after[:, 0] - 1)
    column = (column + 0.5) / _FINER - 0.5
    row = (np.minimum(before[:, 1], after[:, 1]) + 0.5) / _FINER - 0.5
    inside = (np.floor(column) == column) & (column >= 0) & (column <= size - 1)
    row = np.ceil(np.clip(row[inside], 0, size))
    changes = np.bincount((column[inside] * size + row).astype(int), minlength=size * size + 1)
    return (np.cumsum(changes[: size * size]) % 2).reshape(size, size).T


def _outline(start: Array, end: Array) -> Array:
    """The places (x, y) of a line, one for each step along its longer axis."""
    span = np.abs(end - start)
    axis = 0 if span[0] >= span[1] else 1
    steps = np.arange(span[axis] + 1)
    turned = start[axis] > end[axis]
    low, high = (end, start) if turned else (start, end)
    slope = (high[1 - axis] - low[1 - axis]) / span[axis] if span[axis] else 0.0
    along = steps[::-1] if turned else steps
    line = np.empty((len(steps), 2))
    line[:, axis] = along + low[axis]
    line[:, 1 - axis] = np.trunc(low[1 - axis] + slope * along + 0.5)
    return line
