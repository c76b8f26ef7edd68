"""Mean average precision of detections, over one batch and over all since the last reset."""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.ir import VarType

from .boxes import overlaps
from .segments import from_lengths, offsets_of
from .table import Infer, no_gradient, op

Hits = dict[int, list[tuple[float, int]]]  # class -> (score, 1 for a hit) of every detection


def _map_rule(ctx: Infer) -> None:
    ctx.set("MAP", (1,), VarType.FP32, lod_level=0)
    ctx.set("AccumPosCount", (ctx.attr("class_num"), 1), VarType.INT32, lod_level=0)
    for slot in ("AccumTruePos", "AccumFalsePos"):
        ctx.set(slot, (-1, 2), VarType.FP32, lod_level=1)


@op(
    "detection_map",
    infer=_map_rule,
    grad=no_gradient,
    returns="MAP AccumPosCount AccumTruePos AccumFalsePos",
    lod=None,
)
def detection_map(
    xp: Any,
    DetectRes: Array,
    DetectRes_lod: Any,
    Label: Array,
    Label_lod: Any,
    HasState: Array | None,
    PosCount: Array | None,
    TruePos: Array | None,
    TruePos_lod: Any,
    FalsePos: Array | None,
    FalsePos_lod: Any,
    class_num: int,
    overlap_threshold: float,
    evaluate_difficult: bool,
    ap_type: str,
) -> tuple[Array, Array, WithLoD, WithLoD]:
    """Detections are rows (label, score, box), truths (label, difficult or not, box) or
    (label, box); both are sequences over the images.
    """
    counts = np.zeros(class_num, np.int64)
    true: Hits = {}
    false: Hits = {}
    if HasState is not None and int(to_host(HasState).reshape(-1)[0]):
        counts += to_host(PosCount).reshape(-1)
        true, false = _held(TruePos, TruePos_lod), _held(FalsePos, FalsePos_lod)
    found, truth = to_host(DetectRes), to_host(Label)
    parts = (pairwise(offsets_of(lod, "detection_map")) for lod in (DetectRes_lod, Label_lod))
    for (a, b), (c, d) in zip(*parts, strict=True):
        rows = truth[c:d]
        easy = np.ones(len(rows), bool) if truth.shape[1] == 5 else rows[:, 1] == 0
        counted = easy | evaluate_difficult
        counts += np.bincount(rows[counted, 0].astype(int), minlength=class_num)[:class_num]
        _count_image(found[a:b], rows, counted, overlap_threshold, true, false)
    mean = _mean_precision(counts, true, false, ap_type)
    written = (_written(xp, hits, class_num) for hits in (true, false))
    pos = xp.asarray(counts.astype(np.int32).reshape(-1, 1))
    return (xp.asarray([mean], dtype="float32"), pos, *written)


def _held(rows: Array | None, lod: Any) -> Hits:
    values = to_host(rows).tolist()
    return {
        label: [(score, int(hit)) for score, hit in values[a:b]]
        for label, (a, b) in enumerate(pairwise(offsets_of(lod, "detection_map")))
        if b > a
    }


def _written(xp: Any, hits: Hits, classes: int) -> WithLoD:
    each = [hits.get(label, []) for label in range(classes)]
    flat = np.array([pair for rows in each for pair in rows], np.float32).reshape(-1, 2)
    return WithLoD(xp.asarray(flat), (from_lengths(np.array([len(rows) for rows in each])),))


def _count_image(
    found: Array, truth: Array, counted: Array, threshold: float, true: Hits, false: Hits
) -> None:
    """Add the detections of an image: hits of a truth that no better one has taken, or misses."""
    for label in np.unique(found[:, 0]).astype(int).tolist():
        ours = found[found[:, 0] == label]
        ours = ours[np.argsort(-ours[:, 1], kind="stable")]
        theirs = np.flatnonzero(truth[:, 0] == label)
        taken: set[int] = set()
        if len(theirs):
            near = overlaps(np, np.clip(ours[:, 2:6], 0, 1), truth[theirs][:, -4:])
        for i, score in enumerate(ours[:, 1].tolist()):
            best = int(near[i].argmax()) if len(theirs) else -1
            hit = best >= 0 and bool(near[i, best] > threshold)
            if hit and not counted[theirs[best]]:
                continue
            hit = hit and best not in taken
            if hit:
                taken.add(best)
            true.setdefault(label, []).append((score, int(hit)))
            false.setdefault(label, []).append((score, int(not hit)))


def _mean_precision(counts: Array, true: Hits, false: Hits, ap_type: str) -> float:
    """The mean over all classes that have objects, the background class included, as in Fluid."""
    precisions = []
    for label, count in enumerate(counts.tolist()):
        if not count:
            continue
        if label not in true:
            precisions.append(0.0)
            continue
        score = np.array([s for s, _ in true[label]])
        order = np.argsort(-score, kind="stable")
        hits = np.cumsum(np.array([h for _, h in true[label]])[order])
        misses = np.cumsum(np.array([h for _, h in false[label]])[order])
        precision, recall = hits / np.maximum(hits + misses, 1), hits / count
        if ap_type == "11point":
            reached = (precision[recall >= j / 10] for j in range(11))
            precisions.append(sum(float(p.max()) if len(p) else 0.0 for p in reached) / 11)
        else:
            steps = np.diff(np.concatenate([[0.0], recall]))
            precisions.append(float((precision * steps).sum()))
    return sum(precisions) / len(precisions) if precisions else 0.0
