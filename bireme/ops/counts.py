"""Counts that metrics are made of: precision and recall of classes, pairs in order. On the host."""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.ir import VarType

from .table import Infer, no_gradient, op


# -- precision and recall ----------------------------------------------------------------------
def _metrics_rule(ctx: Infer) -> None:
    for slot in ("BatchMetrics", "AccumMetrics"):
        ctx.set(slot, (6,), VarType.FP64, lod_level=0)
    ctx.set("AccumStatesInfo", (ctx.attr("class_number"), 4), VarType.FP32, lod_level=0)


@op(
    "precision_recall",
    infer=_metrics_rule,
    grad=no_gradient,
    returns="BatchMetrics AccumMetrics AccumStatesInfo",
    lod=None,
)
def precision_recall(
    xp: Array, Indices: Array, Labels: Array, Weights: Array, StatesInfo: Array, class_number: int
) -> tuple[Array, ...]:
    """Macro precision, recall and F1, then micro; of the batch and of all batches. States are true
    positives, false positives, true negatives and false negatives of each class.
    """
    found, label = (to_host(a).reshape(-1) for a in (Indices, Labels))
    weights = np.ones(len(found), "float32") if Weights is None else to_host(Weights).reshape(-1)
    states = np.zeros((class_number, 4), "float32")
    right = found == label
    np.add.at(states[:, 0], found[right], weights[right])
    np.add.at(states[:, 1], found[~right], weights[~right])
    np.add.at(states[:, 3], label[~right], weights[~right])
    states[:, 2] = weights.sum() - states[:, 0] - states[:, 1] - states[:, 3]
    total = states if StatesInfo is None else states + to_host(StatesInfo)
    return xp.asarray(_metrics(states)), xp.asarray(_metrics(total)), xp.asarray(total)


def _metrics(states: Array) -> Array:
    hits, false, _, missed = states.astype("float64").T
    macro = _rate(hits, false).mean(), _rate(hits, missed).mean()
    micro = _rate(hits.sum(), false.sum()), _rate(hits.sum(), missed.sum())
    return np.array([*macro, _f1(*macro), *micro, _f1(*micro)])


def _rate(hits: Any, others: Any) -> Any:
    """hits / (hits + others); 1 where there is neither."""
    total = hits + others
    return np.where(total > 0, hits / np.where(total > 0, total, 1), 1.0)


def _f1(precision: Any, recall: Any) -> Any:
    total = precision + recall
    return 2 * precision * recall / total if total > 0 else 0.0


# -- pairs in order ----------------------------------------------------------------------------
def _pairs_rule(ctx: Infer) -> None:
    for slot in ("PositivePair", "NegativePair", "NeutralPair"):
        ctx.set(slot, (1,), VarType.FP32, lod_level=0)


@op(
    "positive_negative_pair",
    infer=_pairs_rule,
    grad=no_gradient,
    returns="PositivePair NegativePair NeutralPair",
    lod=None,
)
def positive_negative_pair(
    xp: Array,
    Score: Array,
    Label: Array,
    QueryID: Array,
    AccumulatePositivePair: Array,
    AccumulateNegativePair: Array,
    AccumulateNeutralPair: Array,
    Weight: Array,
    column: int,
) -> tuple[Array, ...]:
    """The weight of pairs of one query that the score orders as their labels do, of those that it
    does not, and of those with one score, which count as not ordered as well.
    """
    score = to_host(Score)[:, column]
    label, query = (to_host(a).reshape(-1) for a in (Label, QueryID))
    weight = np.ones(len(score), "float32") if Weight is None else to_host(Weight).reshape(-1)
    first, last = np.triu_indices(len(score), 1)
    used = (query[first] == query[last]) & (label[first] != label[last])
    first, last = first[used], last[used]
    weights = (weight[first] + weight[last]) * np.float32(0.5)
    ordered = (score[first] - score[last]) * (label[first] - label[last]) > 0
    sums = (
        weights[ordered].sum(),
        weights[~ordered].sum(),
        weights[score[first] == score[last]].sum(),
    )
    before = (AccumulatePositivePair, AccumulateNegativePair, AccumulateNeutralPair)
    return tuple(
        xp.asarray(np.array([n], "float32")) + (0 if old is None else old.reshape(1))
        for n, old in zip(sums, before, strict=True)
    )
