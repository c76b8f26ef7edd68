"""The loss of a YOLO v3 head: each object is learned by one cell and one anchor (arXiv
1804.02767).
"""

from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .table import GradOp, Infer, op

_SMALL = 1e-6


def _loss_rule(ctx: Infer) -> None:
    x, mask = ctx.x("X"), ctx.attr("anchor_mask")
    wanted = len(mask) * (5 + ctx.attr("class_num"))
    if x.shape[1] != wanted:
        raise InvalidArgument(
            f"yolov3_loss: {x.shape[1]} channels for {len(mask)} anchors and "
            f"{ctx.attr('class_num')} classes",
            hint=f"give {wanted} channels",
        )
    ctx.set("Loss", (x.shape[0],), like=x)
    ctx.set("ObjectnessMask", (x.shape[0], len(mask), *x.shape[2:]), like=x)
    ctx.set("GTMatchMask", ctx.x("GTBox").shape[:2], VarType.INT32)


class _Objects(NamedTuple):
    """Every object that an anchor of this head learns: where, and what its values should be."""

    at: tuple[Array, Array, Array, Array]  # image, anchor of the head, row, column
    place: Array  # [K, 4]: x and y within the cell, logarithms of width and height
    weight: Array  # [K]: how much the box counts; small boxes count more
    label: Array  # [K, classes]
    score: Array  # [K]


def _sigmoid(xp: Any, x: Array) -> Array:
    return 1 / (1 + xp.exp(-x))


def _entropy(xp: Any, x: Array, label: Any) -> Array:
    """Of sigmoid(x)."""
    return xp.maximum(x, 0) - x * label + xp.log1p(xp.exp(-xp.abs(x)))


def _parts(X: Array, anchors: int) -> Array:
    """[image, anchor, row, column, 5 + classes]."""
    images, channels, rows, columns = X.shape
    return X.reshape(images, anchors, channels // anchors, rows, columns).transpose(0, 1, 3, 4, 2)


def _shape_overlap(first: Array, second: Array) -> Array:
    """Overlap of boxes [..., 2] around one middle."""
    shared = np.minimum(first, second).prod(axis=-1)
    return shared / (first.prod(axis=-1) + second.prod(axis=-1) - shared)


def _matches(boxes: Array, anchors: Array, mask: list[int]) -> Array:
    """The anchor of the head that is most like each object; -1 for none, or for no object."""
    best = _shape_overlap(boxes[:, :, None, 2:], anchors).argmax(axis=-1)
    place = np.full(len(anchors), -1)
    place[mask] = np.arange(len(mask))
    return np.where((boxes[..., 2:] > _SMALL).all(axis=-1), place[best], -1).astype(np.int32)


def _objects(
    boxes: Array, labels: Array, scores: Array, match: Array, head: Array, grid: Array,
    classes: int, smooth: bool,
) -> _Objects:  # fmt: skip
    image, which = np.nonzero(match >= 0)
    box, anchor = boxes[image, which], match[image, which]
    spot = box[:, :2] * grid
    cell = spot.astype(np.int64)
    small = min(1 / classes, 1 / 40) if smooth else 0.0
    label = np.full((len(box), classes), small, boxes.dtype)
    label[np.arange(len(box)), labels[image, which]] = 1 - small
    score = scores[image, which]
    size = np.log(box[:, 2:] / head[anchor])
    weight = (2 - box[:, 2] * box[:, 3]) * score
    place = np.concatenate([spot - cell, size], axis=1)
    return _Objects((image, anchor, cell[:, 1], cell[:, 0]), place, weight, label, score)


def _overlap_with_any(xp: Any, parts: Array, boxes: Array, head: Array, scale: float) -> Array:
    """The greatest overlap of every predicted box with an object of its image."""
    rows, columns = parts.shape[2:4]
    cell = xp.stack(xp.meshgrid(xp.arange(columns), xp.arange(rows)), axis=-1)
    shift = _sigmoid(xp, parts[..., :2]) * scale - (scale - 1) / 2
    centre = (cell + shift) / xp.asarray([columns, rows])
    size = xp.exp(parts[..., 2:4]) * head[:, None, None]
    best = xp.zeros(parts.shape[:4])
    for i in range(boxes.shape[1]):
        box = boxes[:, i, None, None, None]
        high = xp.minimum(centre + size / 2, box[..., :2] + box[..., 2:] / 2)
        low = xp.maximum(centre - size / 2, box[..., :2] - box[..., 2:] / 2)
        shared = xp.prod(xp.maximum(high - low, 0), axis=-1)
        area = size.prod(axis=-1) + box[..., 2:].prod(axis=-1) - shared
        real = (box[..., 2:] > _SMALL).all(axis=-1)
        best = xp.maximum(best, xp.where(real, shared / area, 0))
    return best


@op(
    "yolov3_loss",
    infer=_loss_rule,
    grad=GradOp(
        uses=("X", "GTBox", "GTLabel", "GTScore", "ObjectnessMask", "GTMatchMask"),
        wrt=("X",),
        of=("Loss",),
    ),
    returns="Loss ObjectnessMask GTMatchMask",
    lod=None,
)
def yolov3_loss(
    xp: Any,
    X: Array,
    GTBox: Array,
    GTLabel: Array,
    GTScore: Array | None,
    anchors: Any,
    anchor_mask: Any,
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    use_label_smooth: bool,
    scale_x_y: float | None,
) -> tuple[Array, Array, Array]:
    """Per image: place and size of each object, its class, and where there is an object at all.

    Predictions that overlap an object by more than `ignore_thresh` need not say that there is
    none.
    """
    parts = _parts(X, len(anchor_mask))
    shapes = _shapes(anchors, downsample_ratio, X)
    match = _matches(to_host(GTBox), shapes, list(anchor_mask))
    head = shapes[list(anchor_mask)]
    found = _found(GTBox, GTLabel, GTScore, match, head, parts, use_label_smooth)
    scale = 1.0 if scale_x_y is None else scale_x_y
    overlap = _overlap_with_any(xp, parts, GTBox, xp.asarray(head), scale)
    mask = xp.where(overlap > ignore_thresh, -1.0, 0.0).astype(X.dtype)
    at = tuple(xp.asarray(part) for part in found.at)
    mask[at] = xp.asarray(found.score)
    loss = xp.zeros(len(X), "float64")
    xp.add.at(loss, at[0], _object_losses(xp, parts[at], found))
    sure = parts[..., 4]
    about = xp.where(mask > 1e-5, _entropy(xp, sure, 1) * mask, 0)
    about = about + xp.where((mask <= 1e-5) & (mask > -0.5), _entropy(xp, sure, 0), 0)
    loss += about.sum(axis=(1, 2, 3), dtype="float64")
    return loss.astype(X.dtype), mask, xp.asarray(match)


def _shapes(anchors: Any, ratio: int, X: Array) -> Array:
    """Width and height of every anchor as parts of the input image."""
    size = np.array([X.shape[3], X.shape[2]]) * ratio
    return np.asarray(anchors, np.float64).reshape(-1, 2) / size


def _found(
    GTBox: Array, GTLabel: Array, GTScore: Array | None, match: Array, head: Array, parts: Array,
    smooth: bool,
) -> _Objects:  # fmt: skip
    boxes = to_host(GTBox)
    scores = np.ones(match.shape, boxes.dtype) if GTScore is None else to_host(GTScore)
    grid = np.array([parts.shape[3], parts.shape[2]], boxes.dtype)
    classes = parts.shape[-1] - 5
    labels = to_host(GTLabel).reshape(match.shape)
    return _objects(boxes, labels, scores.reshape(match.shape), match, head, grid, classes, smooth)


def _object_losses(xp: Any, given: Array, found: _Objects) -> Array:
    place, weight = xp.asarray(found.place), xp.asarray(found.weight)
    spot = _entropy(xp, given[:, :2], place[:, :2]).sum(axis=1)
    size = xp.abs(given[:, 2:4] - place[:, 2:]).sum(axis=1)
    label = _entropy(xp, given[:, 5:], xp.asarray(found.label)).sum(axis=1)
    return (spot + size) * weight + label * xp.asarray(found.score)


@op("yolov3_loss_grad", lod=None)
def yolov3_loss_grad(
    xp: Any,
    X: Array,
    GTBox: Array,
    GTLabel: Array,
    GTScore: Array | None,
    ObjectnessMask: Array,
    GTMatchMask: Array,
    dLoss: Array,
    anchors: Any,
    anchor_mask: Any,
    downsample_ratio: int,
    use_label_smooth: bool,
) -> Array:
    parts = _parts(X, len(anchor_mask))
    head = _shapes(anchors, downsample_ratio, X)[list(anchor_mask)]
    match = to_host(GTMatchMask)
    found = _found(GTBox, GTLabel, GTScore, match, head, parts, use_label_smooth)
    at = tuple(xp.asarray(part) for part in found.at)
    given, place = parts[at], xp.asarray(found.place)
    weight, score = xp.asarray(found.weight)[:, None], xp.asarray(found.score)[:, None]
    slope = xp.zeros((len(given), parts.shape[-1]), X.dtype)
    slope[:, :2] = (_sigmoid(xp, given[:, :2]) - place[:, :2]) * weight
    slope[:, 2:4] = xp.sign(given[:, 2:4] - place[:, 2:]) * weight
    slope[:, 5:] = (_sigmoid(xp, given[:, 5:]) - xp.asarray(found.label)) * score
    out = xp.zeros(parts.shape, X.dtype)
    xp.add.at(out, at, slope)
    mask, sure = ObjectnessMask, _sigmoid(xp, parts[..., 4])
    out[..., 4] = xp.where(mask > 1e-5, (sure - 1) * mask, xp.where(mask > -0.5, sure, 0))
    out *= dLoss.reshape(-1, 1, 1, 1, 1)
    return xp.ascontiguousarray(out.transpose(0, 1, 4, 2, 3)).reshape(X.shape)
