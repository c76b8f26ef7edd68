"""What the second stage of a detector is trained on: proposals with labels and boxes by class."""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.random import Key
from bireme.arrays.values import WithLoD
from bireme.ir import VarType

from .boxes import overlaps
from .segments import offsets_of
from .table import Infer, no_gradient, op
from .targets import chosen_of, coded, rows_of

_SLOTS = "Rois LabelsInt32 BboxTargets BboxInsideWeights BboxOutsideWeights"


def _proposal_rule(ctx: Infer) -> None:
    rois, wide = ctx.x("RpnRois"), 4 * ctx.attr("class_nums")
    ctx.set("Rois", (-1, 4), like=rois, lod_level=1)
    ctx.set("LabelsInt32", (-1, 1), VarType.INT32, lod_level=1)
    for slot in ("BboxTargets", "BboxInsideWeights", "BboxOutsideWeights"):
        ctx.set(slot, (-1, wide), like=rois, lod_level=1)


@op(
    "generate_proposal_labels",
    infer=_proposal_rule,
    grad=no_gradient,
    returns=_SLOTS,
    lod=None,
    stateful=True,
)
def generate_proposal_labels(
    xp: Any,
    key: Key,
    RpnRois: Array,
    RpnRois_lod: Any,
    GtClasses: Array,
    IsCrowd: Array,
    GtBoxes: Array,
    GtBoxes_lod: Any,
    ImInfo: Array,
    batch_size_per_im: int,
    fg_fraction: float,
    fg_thresh: float,
    bg_thresh_hi: float,
    bg_thresh_lo: float,
    bbox_reg_weights: Any,
    class_nums: int,
    use_random: bool,
    is_cls_agnostic: bool,
    is_cascade_rcnn: bool,
) -> tuple[WithLoD, ...]:
    """Foreground and background among the proposals and the objects of each image (arXiv
    1506.01497), with labels, and box targets and their weights in the columns of their class.

    With `is_cascade_rcnn` (arXiv 1712.00726) all of them are taken, empty proposals aside.
    """
    attrs = locals()
    rois, truth = to_host(RpnRois), to_host(GtBoxes)
    classes, crowd = to_host(GtClasses).reshape(-1), to_host(IsCrowd).reshape(-1)
    draws = key.uniform(np, (2, len(rois) + len(truth)), 0.0, 1.0) if use_random else None
    of_rois = pairwise(offsets_of(RpnRois_lod, "generate_proposal_labels"))
    of_truth = pairwise(offsets_of(GtBoxes_lod, "generate_proposal_labels"))
    found = []
    for (a, b), (c, d), info in zip(of_rois, of_truth, to_host(ImInfo), strict=True):
        own = rois[a:b] / info[2]
        boxes = np.concatenate([truth[c:d], own])
        if is_cascade_rcnn:
            boxes = own[(own[:, 2:] - own[:, :2] + 1 > 0).all(axis=1)]
        draw = (None, None) if draws is None else draws[:, a + c : b + d]
        chosen = _sampled(boxes, truth[c:d], crowd[c:d], attrs, draw)
        found.append(_labelled(boxes, truth[c:d], classes[c:d], chosen, attrs, info[2]))
    kinds = rois.dtype, np.int32, rois.dtype, rois.dtype, rois.dtype
    widths = 4, 1, 4 * class_nums, 4 * class_nums, 4 * class_nums
    parts = zip(zip(*found, strict=True), kinds, widths, strict=True)
    return tuple(rows_of(xp, list(part), kind, width) for part, kind, width in parts)


Chosen = tuple[Array, Array, Array]


def _sampled(boxes: Array, truth: Array, crowd: Array, attrs: Any, draw: Any) -> Chosen:
    """(foreground, its objects, background)."""
    overlap = overlaps(np, boxes, truth, 1.0)
    best = overlap.max(axis=1, initial=0)
    if not attrs["is_cascade_rcnn"]:
        best[: len(crowd)][crowd != 0] = -1
    front = np.flatnonzero(best >= attrs["fg_thresh"])
    back = np.flatnonzero((best >= attrs["bg_thresh_lo"]) & (best < attrs["bg_thresh_hi"]))
    back = back[~np.isin(back, front)]
    if not attrs["is_cascade_rcnn"]:
        size = attrs["batch_size_per_im"]
        front = chosen_of(front, int(size * attrs["fg_fraction"]), draw[0])
        back = chosen_of(back, size - len(front), draw[1])
    object_of = overlap.argmax(axis=1)[front] if len(front) else front
    return front, object_of, back


def _labelled(
    boxes: Array, truth: Array, classes: Array, chosen: Chosen, attrs: Any, scale: float
) -> tuple[Array, ...]:
    """Regions in the scaled image, their labels, box targets, and weights inside and outside."""
    front, object_of, back = chosen
    label = np.concatenate([classes[object_of], np.zeros(len(back), classes.dtype)])
    code = coded(boxes[front], truth[object_of]) / np.array(attrs["bbox_reg_weights"], boxes.dtype)
    target = np.zeros((len(label), attrs["class_nums"], 4), boxes.dtype)
    weight = np.zeros_like(target)
    column = np.ones_like(label) if attrs["is_cls_agnostic"] else label
    held = np.flatnonzero(label[: len(front)] > 0)
    target[held, column[held]] = code[held]
    weight[held, column[held]] = 1
    regions = boxes[np.concatenate([front, back])] * scale
    flat = weight.reshape(len(label), -1)
    return regions, label, target.reshape(len(label), -1), flat, flat
