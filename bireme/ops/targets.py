"""What a detector is trained on: anchors and proposals chosen as foreground or background, with
their labels and the code of their objects.

Choices run on the host, image by image. With `use_random` False the first candidates are chosen.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.random import Key
from bireme.arrays.values import WithLoD
from bireme.ir import VarType

from .boxes import overlaps
from .segments import from_lengths, offsets_of
from .table import Infer, no_gradient, op

_EQUAL = 1e-5  # overlaps that differ by less are the same


def chosen_of(places: Array, most: int, draw: Array | None) -> Array:
    """At most so many of the places: those with the least draws, or the first ones."""
    if len(places) <= most:
        return places
    return places[:most] if draw is None else places[np.argsort(draw[places])[:most]]


def coded(boxes: Array, truth: Array) -> Array:
    """The shift and the logarithm of the size of each true box relative to its box in pixels."""
    size, goal = (b[:, 2:] - b[:, :2] + b.dtype.type(1) for b in (boxes, truth))
    shift = (truth[:, :2] + goal / 2 - boxes[:, :2] - size / 2) / size
    return np.concatenate([shift, np.log(goal / size)], axis=1).astype(boxes.dtype)


class _Anchors(NamedTuple):
    """The anchors of one image that are trained on.

    Attributes:
        located: those with a box to learn; one stands for each background anchor that had been
            chosen as foreground, with weight 0.
        truth: the object of each of `located`.
        weight: of each of `located`, 0 or 1.
        foreground: those that hold an object.
        background: those that hold none.
    """

    located: Array
    truth: Array
    weight: Array
    foreground: Array
    background: Array


def _anchors_of(
    overlap: Array, bounds: tuple[float, float], quota: tuple[int, int] | None, draws: Any
) -> _Anchors:
    """Choose among anchors by their overlap [anchors, objects].

    Foreground is every anchor that overlaps some object most of all, or by at least bounds[1];
    background overlaps each by less than bounds[0]. `quota` is (foreground at most, all).
    """
    best = overlap.max(axis=1, initial=0)
    top = overlap.max(axis=0, initial=0)
    near = (np.abs(overlap - top) < _EQUAL).any(axis=1)
    front = np.flatnonzero(near | (best >= bounds[1]))
    back = np.flatnonzero(best < bounds[0])
    if quota is not None:
        front = chosen_of(front, quota[0], draws[0])
        back = chosen_of(back, quota[1] - len(front), draws[1])
    label = np.full(len(overlap), -1)
    label[front] = 1
    twice = int(np.isin(back, front).sum())
    label[back] = 0
    true = np.flatnonzero(label == 1)
    located = np.concatenate([np.repeat(front[:1], twice), true])
    truth = overlap.argmax(axis=1)[located] if overlap.shape[1] else located
    weight = np.repeat([0.0, 1.0], [twice, len(true)])
    return _Anchors(located, truth, weight, true, np.flatnonzero(label == 0))


def _images(lod: Any, arrays: Sequence[Array], name: str) -> Iterator[list[Array]]:
    for a, b in pairwise(offsets_of(lod, name)):
        yield [array[a:b] for array in arrays]


def rows_of(xp: Any, parts: list[Array], dtype: Any, width: int) -> WithLoD:
    """The rows of all images as sequences; numbers without a width are a vector."""
    flat = np.concatenate(parts).astype(dtype)
    flat = flat.reshape(-1, width) if width else flat
    return WithLoD(xp.asarray(flat), (from_lengths(np.array([len(p) for p in parts])),))


# -- anchors -----------------------------------------------------------------------------------
_ANCHOR_OUTS = "LocationIndex ScoreIndex TargetBBox TargetLabel BBoxInsideWeight"


def _anchor_rule(ctx: Infer) -> None:
    anchor = ctx.x("Anchor")
    for slot in ("LocationIndex", "ScoreIndex"):
        ctx.set(slot, (-1,), VarType.INT32, lod_level=0)
    ctx.set("TargetLabel", (-1, 1), VarType.INT32, lod_level=0)
    for slot in ("TargetBBox", "BBoxInsideWeight"):
        ctx.set(slot, (-1, 4), like=anchor, lod_level=0)
    ctx.set("ForegroundNumber", (-1, 1), VarType.INT32, lod_level=0)


def _all_anchors(
    xp: Any, anchors: Array, truths: list[Array], chosen: list[_Anchors], labels: list[Array]
) -> list[WithLoD]:
    shift = len(anchors) * np.arange(len(chosen))
    location = [s + c.located for s, c in zip(shift, chosen, strict=True)]
    score = [
        s + np.concatenate([c.foreground, c.background]) for s, c in zip(shift, chosen, strict=True)
    ]
    code = [
        coded(anchors[c.located], truth[c.truth]) for c, truth in zip(chosen, truths, strict=True)
    ]
    weight = [np.repeat(c.weight, 4).reshape(-1, 4) for c in chosen]
    return [
        rows_of(xp, location, np.int32, 0),
        rows_of(xp, score, np.int32, 0),
        rows_of(xp, code, anchors.dtype, 4),
        rows_of(xp, labels, np.int32, 1),
        rows_of(xp, weight, anchors.dtype, 4),
    ]


@op(
    "rpn_target_assign",
    infer=_anchor_rule,
    grad=no_gradient,
    returns=_ANCHOR_OUTS,
    lod=None,
    stateful=True,
)
def rpn_target_assign(
    xp: Any,
    key: Key,
    Anchor: Array,
    GtBoxes: Array,
    GtBoxes_lod: Any,
    IsCrowd: Array,
    ImInfo: Array,
    rpn_batch_size_per_im: int,
    rpn_straddle_thresh: float,
    rpn_fg_fraction: float,
    rpn_positive_overlap: float,
    rpn_negative_overlap: float,
    use_random: bool,
) -> tuple[WithLoD, ...]:
    """The anchors that a region proposal network learns from (arXiv 1506.01497): a share of
    foreground, the rest background, of those within the image; crowds are no objects.
    """
    anchors, info = to_host(Anchor).reshape(-1, 4), to_host(ImInfo)
    quota = int(rpn_fg_fraction * rpn_batch_size_per_im), rpn_batch_size_per_im
    draws = [(None, None)] * len(info)
    if use_random:
        draws = key.uniform(np, (len(info), 2, len(anchors)), 0.0, 1.0)
    chosen, truths = [], []
    parts = _images(GtBoxes_lod, (to_host(GtBoxes), to_host(IsCrowd)), "rpn_target_assign")
    for i, (boxes, crowd) in enumerate(parts):
        truth = boxes[crowd.reshape(-1) == 0] * info[i, 2]
        inside = _within(anchors, info[i], rpn_straddle_thresh)
        overlap = overlaps(np, anchors[inside], truth, 1.0)
        given = [None if draw is None else draw[inside] for draw in draws[i]]
        bounds = rpn_negative_overlap, rpn_positive_overlap
        found = _anchors_of(overlap, bounds, quota if min(quota) > 0 else None, given)
        places = (inside[found.located], inside[found.foreground], inside[found.background])
        chosen.append(_Anchors(places[0], found.truth, found.weight, *places[1:]))
        truths.append(truth)
    labels = [np.repeat([1, 0], [len(c.foreground), len(c.background)]) for c in chosen]
    return tuple(_all_anchors(xp, anchors, truths, chosen, labels))


def _within(anchors: Array, info: Array, most: float) -> Array:
    """The anchors that stand out of the image by at most so much; all if it is negative."""
    if most < 0:
        return np.arange(len(anchors))
    low = (anchors[:, :2] >= -most).all(axis=1)
    return np.flatnonzero(low & (anchors[:, 2:] < info[1::-1] + most).all(axis=1))


@op(
    "retinanet_target_assign",
    infer=_anchor_rule,
    grad=no_gradient,
    returns=_ANCHOR_OUTS + " ForegroundNumber",
    lod=None,
)
def retinanet_target_assign(
    xp: Any,
    Anchor: Array,
    GtBoxes: Array,
    GtBoxes_lod: Any,
    GtLabels: Array,
    IsCrowd: Array,
    ImInfo: Array,
    positive_overlap: float,
    negative_overlap: float,
) -> tuple[Any, ...]:
    """All anchors that are clearly foreground or background, with the label of their object
    (arXiv 1708.02002), and 1 + the number of foreground anchors of each image.
    """
    anchors, info = to_host(Anchor).reshape(-1, 4), to_host(ImInfo)
    chosen, truths, labels = [], [], []
    arrays = to_host(GtBoxes), to_host(IsCrowd), to_host(GtLabels)
    parts = _images(GtBoxes_lod, arrays, "retinanet_target_assign")
    for i, (boxes, crowd, label) in enumerate(parts):
        single = crowd.reshape(-1) == 0
        truth = boxes[single] * info[i, 2]
        overlap = overlaps(np, anchors, truth, 1.0)
        found = _anchors_of(overlap, (negative_overlap, positive_overlap), None, None)
        front = found.truth[found.weight > 0]
        ours = label.reshape(-1)[single][front]
        labels.append(np.concatenate([ours, np.zeros(len(found.background))]))
        chosen.append(found)
        truths.append(truth)
    count = [np.array([[1 + len(c.located)]]) for c in chosen]
    rows = _all_anchors(xp, anchors, truths, chosen, labels)
    return (*rows, rows_of(xp, count, np.int32, 1))
