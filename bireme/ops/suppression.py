"""Few boxes out of many: non-maximum suppression, proposals, and their levels in a pyramid.

Suppression keeps or drops box after box, so it runs on the host; overlaps are computed for all
pairs at once.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import VarType

from .boxes import areas, clipped, overlaps
from .segments import from_lengths, offsets_of, owners
from .table import Infer, no_gradient, op

_LARGEST = float(np.log(1000.0 / 16.0))  # of a decoded logarithm of a size


def suppressed(boxes: Array, threshold: float, eta: float, extra: float, most: int = -1) -> Array:
    """Which of the boxes, best first, overlap none that was kept by more than the threshold.

    With `eta` below 1 the threshold falls by it with each kept box while it is above a half.
    """
    kept: list[int] = []
    for i, box in enumerate(boxes):
        if kept and (touching(box, boxes[kept], extra) > threshold).any():
            continue
        kept.append(i)
        if len(kept) == most:
            break
        if eta < 1 and threshold > 0.5:
            threshold *= eta
    return np.array(kept, np.int64)


def touching(box: Array, others: Array, extra: float) -> Array:
    """How much a box overlaps each of the others; not at all where they do not touch."""
    apart = ((box[:2] > others[:, 2:]) | (others[:, :2] > box[2:])).any(axis=1)
    return np.where(apart, 0, overlaps(np, box[None], others, extra)[0])


def best_of(scores: Array, most: int) -> Array:
    """The places of the greatest scores, greatest first; all if `most` is negative."""
    order = np.argsort(-scores, kind="stable")
    return order[:most] if most > -1 else order


# -- multiclass_nms ----------------------------------------------------------------------------
def _nms_rule(ctx: Infer) -> None:
    boxes = ctx.x("BBoxes")
    if boxes.shape[-1] > 4:
        raise UnsupportedError(
            f"{ctx.op.type} of polygons ({boxes.shape[-1]} numbers each)",
            hint="give boxes as (left, top, right, bottom)",
        )
    ctx.set("Out", (-1, boxes.shape[-1] + 2), like=boxes, lod_level=1)
    ctx.set("Index", (-1, 1), VarType.INT32, lod_level=1)


def _images(boxes: Array, scores: Array, lod: Any) -> list[tuple[Array, Array]]:
    """(boxes [C or 1, M, 4], scores [C, M]) of each image."""
    if scores.ndim == 3:
        return [(b[None], s) for b, s in zip(boxes, scores, strict=True)]
    offsets = offsets_of(lod, "multiclass_nms")
    parts = pairwise(offsets)
    return [(boxes[a:b].swapaxes(0, 1), scores[a:b].T) for a, b in parts]


def _detected(boxes: Array, scores: Array, attrs: dict[str, Any]) -> tuple[Array, Array, Array]:
    """(class, place) of every kept box of an image and its score, by class, best first."""
    labels, places, values = [], [], []
    for which, score in enumerate(scores):
        if which == attrs["background_label"]:
            continue
        ours = boxes[which if len(boxes) > 1 else 0]
        order = np.flatnonzero(score > attrs["score_threshold"])
        order = order[best_of(score[order], attrs["nms_top_k"])]
        extra = 0.0 if attrs["normalized"] else 1.0
        order = order[suppressed(ours[order], attrs["nms_threshold"], attrs["nms_eta"], extra)]
        labels.append(np.full(len(order), which))
        places.append(order)
        values.append(score[order])
    if not labels:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, scores.dtype)
    label, place, value = map(np.concatenate, (labels, places, values))
    if -1 < attrs["keep_top_k"] < len(label):
        chosen = best_of(value, attrs["keep_top_k"])
        chosen = chosen[np.argsort(label[chosen], kind="stable")]
        label, place, value = label[chosen], place[chosen], value[chosen]
    return label, place, value


def _all_detected(xp: Any, boxes: Array, scores: Array, lod: Any, attrs: dict[str, Any]) -> Any:
    """The rows (label, score, box) of all images with their places, and their LoD."""
    host = to_host(boxes), to_host(scores)
    rows, places, start = [], [], 0
    for ours, score in _images(*host, lod):
        label, place, value = _detected(ours, score, attrs)
        if scores.ndim == 2:  # boxes of their own for each class stay in their order
            order = np.lexsort((place, label))
            label, place, value = label[order], place[order], value[order]
        box = ours[label if len(ours) > 1 else 0 * label, place]
        rows.append(np.concatenate([label[:, None], value[:, None], box], axis=1))
        per_class = scores.ndim == 2
        places.append(start + (place * len(score) + label if per_class else place))
        start += score.size if per_class else ours.shape[1]
    offsets = from_lengths(np.array([len(part) for part in rows]))
    return np.concatenate(rows).astype(boxes.dtype), np.concatenate(places), offsets


@op("multiclass_nms", infer=_nms_rule, grad=no_gradient, lod=None)
def multiclass_nms(
    xp: Any,
    BBoxes: Array,
    BBoxes_lod: Any,
    Scores: Array,
    background_label: int,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
    normalized: bool,
) -> WithLoD:
    """Rows (label, score, box) of what is left in each image; a single -1 if nothing is."""
    rows, _, offsets = _all_detected(xp, BBoxes, Scores, BBoxes_lod, locals())
    if not len(rows):
        return WithLoD(xp.full((1, 1), -1, BBoxes.dtype), (np.array([0, 1]),))
    return WithLoD(xp.asarray(rows), (offsets,))


@op("multiclass_nms2", infer=_nms_rule, grad=no_gradient, returns="Out Index", lod=None)
def multiclass_nms2(
    xp: Any,
    BBoxes: Array,
    BBoxes_lod: Any,
    Scores: Array,
    background_label: int,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
    normalized: bool,
) -> tuple[WithLoD, WithLoD]:
    """`multiclass_nms` with the places of what is left; no rows at all if nothing is."""
    rows, places, offsets = _all_detected(xp, BBoxes, Scores, BBoxes_lod, locals())
    index = xp.asarray(places.astype(np.int32).reshape(-1, 1))
    return WithLoD(xp.asarray(rows), (offsets,)), WithLoD(index, (offsets,))


# -- generate_proposals ------------------------------------------------------------------------
def _proposal_rule(ctx: Infer) -> None:
    scores = ctx.x("Scores")
    ctx.set("RpnRois", (-1, 4), like=scores, lod_level=1)
    ctx.set("RpnRoiProbs", (-1, 1), like=scores, lod_level=1)
    ctx.set("RpnRoisLod", (-1,), VarType.INT64)


@op(
    "generate_proposals",
    infer=_proposal_rule,
    grad=no_gradient,
    returns="RpnRois RpnRoiProbs RpnRoisLod",
    lod=None,
)
def generate_proposals(
    xp: Any,
    Scores: Array,
    BboxDeltas: Array,
    ImInfo: Array,
    Anchors: Array,
    Variances: Array,
    pre_nms_topN: int,
    post_nms_topN: int,
    nms_thresh: float,
    min_size: float,
    eta: float,
) -> tuple[WithLoD, WithLoD, Array]:
    """The best boxes of a region proposal network (arXiv 1506.01497), best first in each image."""
    scores = to_host(Scores).transpose(0, 2, 3, 1).reshape(len(Scores), -1)
    images, _, rows, columns = BboxDeltas.shape
    deltas = to_host(BboxDeltas).reshape(images, -1, 4, rows, columns)
    deltas = deltas.transpose(0, 3, 4, 1, 2).reshape(images, -1, 4)
    anchors, spread = to_host(Anchors).reshape(-1, 4), to_host(Variances).reshape(-1, 4)
    boxes, values = [], []
    for score, delta, info in zip(scores, deltas, to_host(ImInfo), strict=True):
        order = best_of(score, pre_nms_topN if pre_nms_topN > 0 else -1)
        box = _proposed(anchors[order], delta[order], spread[order])
        box = clipped(np, box, info[1::-1][None] - 1)
        large = _large_enough(box, max(min_size, 1.0), info)
        box, value = box[large], score[order][large]
        if not len(box):
            box, value = np.zeros((1, 4), box.dtype), np.zeros(1, value.dtype)
        elif nms_thresh > 0:
            kept = suppressed(box, nms_thresh, eta, 1.0, post_nms_topN)
            box, value = box[kept], value[kept]
        boxes.append(box)
        values.append(value)
    offsets = from_lengths(np.array([len(box) for box in boxes]))
    flat = xp.asarray(np.concatenate(boxes)), xp.asarray(np.concatenate(values).reshape(-1, 1))
    return (*(WithLoD(part, (offsets,)) for part in flat), xp.asarray(offsets))


def _proposed(anchors: Array, deltas: Array, spread: Array) -> Array:
    size = anchors[:, 2:] - anchors[:, :2] + 1
    middle = anchors[:, :2] + size / 2
    centre = deltas[:, :2] * spread[:, :2] * size + middle
    half = np.exp(np.minimum(deltas[:, 2:] * spread[:, 2:], _LARGEST)) * size / 2
    return np.concatenate([centre - half, centre + half - 1], axis=1).astype(anchors.dtype)


def _large_enough(boxes: Array, least: float, info: Array) -> Array:
    """Boxes of at least so many pixels of the original image whose middle lies in the image."""
    size = boxes[:, 2:] - boxes[:, :2]
    middle = boxes[:, :2] + (size + 1) / 2
    large = (size / info[2] + 1 >= least) & (middle <= info[1::-1])
    return large.all(axis=1)


# -- levels of a pyramid -----------------------------------------------------------------------
def _levels_rule(ctx: Infer) -> None:
    rois = ctx.x("FpnRois")
    for i in range(len(ctx.op.outputs.get("MultiFpnRois", ()))):
        ctx.set("MultiFpnRois", (-1, 4), like=rois, lod_level=1, index=i)
    ctx.set("RestoreIndex", (rois.shape[0], 1), VarType.INT32, lod_level=0)


@op(
    "distribute_fpn_proposals",
    infer=_levels_rule,
    grad=no_gradient,
    returns="MultiFpnRois RestoreIndex",
    lod=None,
)
def distribute_fpn_proposals(
    xp: Any,
    FpnRois: Array,
    FpnRois_lod: Any,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
) -> tuple[list[WithLoD], Array]:
    """Each box to the level of its size (arXiv 1612.03144), and where each is found again."""
    rois, offsets = to_host(FpnRois), offsets_of(FpnRois_lod, "distribute_fpn_proposals")
    size = np.sqrt(areas(np, rois, 1.0))
    level = np.floor(np.log2(size / refer_scale + 1e-6) + refer_level)
    level = np.clip(level, min_level, max_level).astype(np.int64)
    owner = owners(offsets)
    parts, order = [], []
    for n in range(min_level, max_level + 1):
        chosen = np.flatnonzero(level == n)
        counts = np.bincount(owner[chosen], minlength=len(offsets) - 1)
        parts.append(WithLoD(xp.asarray(rois[chosen]), (from_lengths(counts),)))
        order.append(chosen)
    restore = np.argsort(np.concatenate(order)).astype(np.int32)
    return parts, xp.asarray(restore.reshape(-1, 1))


def _collect_rule(ctx: Infer) -> None:
    ctx.set("FpnRois", (-1, 4), like=ctx.x("MultiLevelRois"), lod_level=1)


@op("collect_fpn_proposals", infer=_collect_rule, grad=no_gradient, lod=None)
def collect_fpn_proposals(
    xp: Any,
    MultiLevelRois: list[Array],
    MultiLevelRois_lod: Any,
    MultiLevelScores: list[Array],
    post_nms_topN: int,
) -> WithLoD:
    """The best boxes of all levels and images together, in the order of their images."""
    rois = np.concatenate([to_host(part) for part in MultiLevelRois])
    score = np.concatenate([to_host(part).reshape(-1) for part in MultiLevelScores])
    owner = np.concatenate([owners(lod[-1]) for lod in MultiLevelRois_lod])
    images = len(MultiLevelRois_lod[0][-1]) - 1
    chosen = best_of(score, post_nms_topN)
    chosen = chosen[np.argsort(owner[chosen], kind="stable")]
    counts = np.bincount(owner[chosen], minlength=images)
    return WithLoD(xp.asarray(rois[chosen]), (from_lengths(counts),))


# -- yolo_box ----------------------------------------------------------------------------------
def _yolo_rule(ctx: Infer) -> None:
    x, classes = ctx.x("X"), ctx.attr("class_num")
    anchors = len(ctx.attr("anchors")) // 2
    if x.shape[1] != anchors * (5 + classes):
        raise InvalidArgument(
            f"yolo_box: {x.shape[1]} channels for {anchors} anchors and {classes} classes",
            hint=f"give {anchors * (5 + classes)} channels",
        )
    known = x.shape[2] > 0 and x.shape[3] > 0
    count = anchors * x.shape[2] * x.shape[3] if known else -1
    ctx.set("Boxes", (x.shape[0], count, 4), like=x)
    ctx.set("Scores", (x.shape[0], count, classes), like=x)


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


@op("yolo_box", infer=_yolo_rule, grad=no_gradient, returns="Boxes Scores", lod=None)
def yolo_box(
    xp: Any,
    X: Array,
    ImgSize: Array,
    anchors: Any,
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool,
    scale_x_y: float | None,
) -> tuple[Array, Array]:
    """Boxes in pixels and scores by class of a YOLO v3 head (arXiv 1804.02767); both are 0 where
    the confidence is below `conf_thresh`.
    """
    images, _, rows, columns = X.shape
    shape = xp.asarray(anchors, dtype=X.dtype).reshape(1, -1, 1, 1, 2)
    parts = X.reshape(images, shape.shape[1], 5 + class_num, rows, columns).transpose(0, 1, 3, 4, 2)
    scale = X.dtype.type(1.0 if scale_x_y is None else scale_x_y)
    cell = xp.stack(xp.meshgrid(xp.arange(columns), xp.arange(rows)), axis=-1)
    grid = xp.asarray([columns, rows], dtype=X.dtype)
    image = ImgSize[:, ::-1].astype(X.dtype).reshape(-1, 1, 1, 1, 2)
    shift = _sigmoid(xp, parts[..., :2]) * scale - (scale - 1) / 2
    centre = (cell.astype(X.dtype) + shift) * image / grid
    half = xp.exp(parts[..., 2:4]) * shape * image / (downsample_ratio * grid) / 2
    sure = _sigmoid(xp, parts[..., 4:5])
    low, high = centre - half, centre + half
    if clip_bbox:
        low, high = xp.maximum(low, 0), xp.minimum(high, image - 1)
    boxes = xp.concatenate([low, high], axis=-1)
    shown = sure >= conf_thresh
    scores = xp.where(shown, sure * _sigmoid(xp, parts[..., 5:]), 0)
    flat = xp.where(shown, boxes, 0).astype(X.dtype).reshape(images, -1, 4)
    return flat, scores.astype(X.dtype).reshape(images, -1, class_num)
