"""Suppression that lowers scores (matrix), that merges boxes (locality-aware), and that of the
levels of RetinaNet. On the host, image by image.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import VarType

from .segments import from_lengths
from .suppression import best_of, suppressed, touching
from .table import Infer, no_gradient, op


def _rule(ctx: Infer) -> None:
    boxes, scores = ctx.x("BBoxes"), ctx.x("Scores")
    if len(boxes.shape) != 3 or len(scores.shape) != 3:
        raise InvalidArgument(
            f"{ctx.op.type}: boxes {list(boxes.shape)}, scores {list(scores.shape)}",
            hint="boxes are [N, M, 4], scores [N, C, M]",
        )
    if boxes.shape[2] != 4:
        raise UnsupportedError(
            f"{ctx.op.type}: boxes of {boxes.shape[2]} numbers",
            hint="give (left, top, right, bottom); polygons are not available",
        )
    ctx.set("Out", (-1, 6), like=boxes, lod_level=1)
    ctx.set("Index", (-1, 1), VarType.INT32, lod_level=1)


def _detected(label: Array, score: Array, boxes: Array) -> Array:
    parts = [np.asarray(label, boxes.dtype)[:, None], score[:, None], boxes]
    return np.concatenate(parts, axis=1).astype(boxes.dtype)


def _sequences(xp: Any, rows: list[Array], dtype: Any) -> WithLoD:
    offsets = from_lengths(np.array([len(part) for part in rows]))
    return WithLoD(xp.asarray(np.concatenate(rows).astype(dtype)), (offsets,))


def _or_nothing(xp: Any, rows: list[Array], dtype: Any) -> WithLoD:
    """A single -1 where no image has a row."""
    if not any(map(len, rows)):
        return WithLoD(xp.full((1, 1), -1, dtype), (np.array([0, 1]),))
    return _sequences(xp, rows, dtype)


# -- matrix_nms --------------------------------------------------------------------------------
@op("matrix_nms", infer=_rule, grad=no_gradient, returns="Out Index", lod=None)
def matrix_nms(
    xp: Any,
    BBoxes: Array,
    Scores: Array,
    background_label: int,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    normalized: bool,
    use_gaussian: bool,
    gaussian_sigma: float,
) -> tuple[WithLoD, WithLoD]:
    """Every box's score lowered by what better boxes of its class overlap it (arXiv 2003.10152)."""
    attrs = locals()
    boxes, scores = to_host(BBoxes), to_host(Scores)
    rows, places = [], []
    for i, (box, score) in enumerate(zip(boxes, scores, strict=True)):
        found = [
            _lowered(c, box, score[c], attrs) for c in range(len(score)) if c != background_label
        ]
        label, place, value = (np.concatenate(part) for part in zip(*found, strict=True))
        order = best_of(value, keep_top_k)
        rows.append(_detected(label[order], value[order], box[place[order]]))
        places.append(place[order][:, None] + i * len(box))
    return _sequences(xp, rows, boxes.dtype), _sequences(xp, places, np.int32)


def _lowered(label: int, boxes: Array, score: Array, attrs: Any) -> tuple[Array, Array, Array]:
    """(label, place, score) of the boxes of a class that stay above `post_threshold`."""
    place = np.flatnonzero(score > attrs["score_threshold"])
    place = place[best_of(score[place], attrs["nms_top_k"])]
    extra = 0.0 if attrs["normalized"] else 1.0
    rows = [touching(box, boxes[place], extra) for box in boxes[place]]
    near = np.triu(np.reshape(rows, (len(place),) * 2).astype(boxes.dtype), 1)
    most = near.max(axis=0, initial=0)[:, None]  # that any better box overlaps each
    if attrs["use_gaussian"]:
        factor = np.exp((most**2 - near**2) * near.dtype.type(attrs["gaussian_sigma"]))
    else:
        factor = (1 - near) / (1 - most)
    better = np.triu(np.ones_like(near, bool), 1)
    factor = np.where(better, factor, 1).min(axis=0, initial=1)
    value = score[place] * factor
    kept = value > attrs["post_threshold"]
    return np.full(int(kept.sum()), label), place[kept], value[kept]


# -- locality_aware_nms ------------------------------------------------------------------------
@op("locality_aware_nms", infer=_rule, grad=no_gradient, lod=None)
def locality_aware_nms(
    xp: Any,
    BBoxes: Array,
    Scores: Array,
    background_label: int,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
    normalized: bool,
) -> WithLoD:
    """Neighbours that overlap merged into one box, then suppression (arXiv 1704.03155); a single -1
    if nothing is left.
    """
    extra = 0.0 if normalized else 1.0
    rows = []
    for boxes, scores in zip(to_host(BBoxes), to_host(Scores), strict=True):
        found = [np.zeros((0, 6), boxes.dtype)]
        merged = boxes.copy()
        for label, score in enumerate(scores.copy()):
            if label != background_label:
                left = _merged(merged, score, nms_threshold, extra)
                left = left[score[left] > score_threshold]
                left = left[best_of(score[left], nms_top_k)]
                left = left[suppressed(merged[left], nms_threshold, nms_eta, extra)]
                found.append(_detected(np.full(len(left), label), score[left], merged[left]))
        every = np.concatenate(found)
        if -1 < keep_top_k < len(every):
            every = every[best_of(every[:, 1], keep_top_k)]
            every = every[np.argsort(every[:, 0], kind="stable")]
        rows.append(every)
    return _or_nothing(xp, rows, BBoxes.dtype)


def _merged(boxes: Array, score: Array, threshold: float, extra: float) -> Array:
    """The boxes that are left when each, in turn, is merged into the last one that it overlaps by
    more than the threshold: weighted by scores, which add up. Changes both arrays.
    """
    left: list[int] = []
    for i in range(len(boxes)):
        last = left[-1] if left else -1
        if left and touching(boxes[i], boxes[last][None], extra)[0] > threshold:
            total = score[i] + score[last]
            boxes[last] = (boxes[i] * score[i] + boxes[last] * score[last]) / total
            score[last] = total
        else:
            left.append(i)
    return np.array(left, np.int64)


# -- retinanet_detection_output -------------------------------------------------------------------
def _levels_rule(ctx: Infer) -> None:
    ctx.set("Out", (-1, 6), like=ctx.x("BBoxes"), lod_level=1)


@op("retinanet_detection_output", infer=_levels_rule, grad=no_gradient, lod=None)
def retinanet_detection_output(
    xp: Any,
    BBoxes: list[Array],
    Scores: list[Array],
    Anchors: list[Array],
    ImInfo: Array,
    score_threshold: float,
    nms_top_k: int,
    nms_threshold: float,
    nms_eta: float,
    keep_top_k: int,
) -> WithLoD:
    """Rows (label from 1, score, box) of what all levels detect in each image (arXiv 1708.02002),
    in pixels of the original image; a single -1 if there is nothing.
    """
    levels = [tuple(map(to_host, level)) for level in zip(BBoxes, Scores, Anchors, strict=True)]
    rows = []
    for i, info in enumerate(to_host(ImInfo)):
        found = []
        for number, (code, score, anchors) in enumerate(levels):
            least = score_threshold if number < len(levels) - 1 else 0.0
            found.append(
                _decoded(code[i], score[i], anchors.reshape(-1, 4), info, least, nms_top_k)
            )
        every = np.concatenate(found)
        parts = [
            part[suppressed(part[:, 2:], nms_threshold, nms_eta, 1.0)]
            for part in (_of_class(every, c) for c in np.unique(every[:, 0]))
        ]
        kept = np.concatenate([np.zeros((0, 6), every.dtype), *parts])
        rows.append(kept[best_of(kept[:, 1], keep_top_k)])
    return _or_nothing(xp, rows, BBoxes[0].dtype)


def _of_class(rows: Array, label: float) -> Array:
    own = rows[rows[:, 0] == label]
    return own[np.argsort(-own[:, 1], kind="stable")]


def _decoded(
    code: Array, score: Array, anchors: Array, info: Array, least: float, most: int
) -> Array:
    """Rows of the best pairs of an anchor and a class of one level."""
    flat = score.reshape(-1)
    place = np.flatnonzero(flat > least)
    place = place[best_of(flat[place], most)]
    which, label = place // score.shape[1], place % score.shape[1]
    box = anchors[which]
    size = box[:, 2:] - box[:, :2] + 1
    centre = code[which, :2] * size + box[:, :2] + size / 2
    half = np.exp(code[which, 2:]) * size / 2
    corners = np.concatenate([centre - half, centre + half - 1], axis=1) / info[2]
    limit = np.round(info[1::-1] / info[2]) - 1
    corners = np.clip(corners, 0, np.concatenate([limit, limit]))
    return _detected(label + 1, flat[place], corners.astype(code.dtype))
