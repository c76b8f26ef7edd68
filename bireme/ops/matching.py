"""Which box belongs to which object: bipartite matching, targets from it, hard negatives."""

from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .segments import from_lengths, offsets_of
from .table import Infer, no_gradient, op

Pair = tuple[Array, Array]
_LEAST = 1e-6  # no match below


def _match_rule(ctx: Infer) -> None:
    x = ctx.x("DistMat")
    shape = (-1 if x.lod_level else 1, x.shape[1])
    ctx.set("ColToRowMatchIndices", shape, VarType.INT32, lod_level=0)
    ctx.set("ColToRowMatchDist", shape, like=x, lod_level=0)


@op(
    "bipartite_match",
    infer=_match_rule,
    grad=no_gradient,
    returns="ColToRowMatchIndices ColToRowMatchDist",
    lod=None,
)
def bipartite_match(
    xp: Any, DistMat: Array, DistMat_lod: Any, match_type: str, dist_threshold: float
) -> Pair:
    """For every column its row, -1 for none: the greatest distance first, each row and column once.

    `per_prediction` then gives each column that is left its greatest row from `dist_threshold` on.
    """
    distance = to_host(DistMat)
    offsets = DistMat_lod[-1] if DistMat_lod else np.array([0, len(distance)])
    rows = [
        _matched(distance[a:b], match_type == "per_prediction", dist_threshold)
        for a, b in pairwise(offsets)
    ]
    index, value = (np.stack(part) for part in zip(*rows, strict=True))
    return xp.asarray(index), xp.asarray(value)


def _matched(distance: Array, every_column: bool, threshold: float) -> Pair:
    columns = distance.shape[1]
    index, value = np.full(columns, -1, np.int32), np.zeros(columns, distance.dtype)
    left = distance.copy()
    for _ in range(min(distance.shape)):
        row, column = divmod(int(left.argmax()), columns)
        if left[row, column] <= 0:
            break
        index[column], value[column] = row, distance[row, column]
        left[row], left[:, column] = -1, -1
    if every_column and len(distance):
        best = distance.max(axis=0)
        more = (index < 0) & (best >= max(threshold, _LEAST))
        index[more], value[more] = distance.argmax(axis=0)[more], best[more]
    return index, value


def _assign_rule(ctx: Infer) -> None:
    x, match = ctx.x("X"), ctx.x("MatchIndices")
    ctx.set("Out", (*match.shape, x.shape[-1]), like=x, lod_level=0)
    ctx.set("OutWeight", (*match.shape, 1), VarType.FP32, lod_level=0)


@op("target_assign", infer=_assign_rule, grad=no_gradient, returns="Out OutWeight", lod=None)
def target_assign(
    xp: Any,
    X: Array,
    X_lod: Any,
    MatchIndices: Array,
    NegIndices: Array | None,
    NegIndices_lod: Any,
    mismatch_value: int,
) -> Pair:
    """The row of X that each column was matched to, with weight 1; `mismatch_value` with weight 0
    where there is none, and with weight 1 where the column is a chosen negative.
    """
    starts = offsets_of(X_lod, "target_assign")[:-1]
    rows = X.reshape(len(X), -1, X.shape[-1])
    hit = MatchIndices >= 0
    line = xp.where(hit, MatchIndices + xp.asarray(starts)[:, None], 0)
    column = xp.arange(MatchIndices.shape[1]) % rows.shape[1]
    out = xp.where(hit[..., None], rows[line, column], X.dtype.type(mismatch_value))
    weight = hit.astype("float32")[..., None]
    if NegIndices is not None:
        lengths = np.diff(offsets_of(NegIndices_lod, "target_assign"))
        sample = xp.asarray(np.repeat(np.arange(len(lengths)), lengths))
        out[sample, NegIndices.reshape(-1)] = mismatch_value
        weight[sample, NegIndices.reshape(-1)] = 1
    return out, weight


def _mine_rule(ctx: Infer) -> None:
    match = ctx.x("MatchIndices")
    ctx.set("NegIndices", (-1, 1), VarType.INT32, lod_level=1)
    ctx.set("UpdatedMatchIndices", like=match)


@op(
    "mine_hard_examples",
    infer=_mine_rule,
    grad=no_gradient,
    returns="NegIndices UpdatedMatchIndices",
    lod=None,
)
def mine_hard_examples(
    xp: Any,
    ClsLoss: Array,
    LocLoss: Array | None,
    MatchIndices: Array,
    MatchDist: Array,
    neg_pos_ratio: float,
    neg_dist_threshold: float,
    sample_size: int,
    mining_type: str,
) -> tuple[WithLoD, Array]:
    """The negatives with the greatest losses: `neg_pos_ratio` for each positive, or `sample_size`
    of all, of which the positives that are not chosen lose their match.
    """
    if mining_type not in ("max_negative", "hard_example"):
        raise InvalidArgument(
            f"mining_type {mining_type!r}", hint="write 'max_negative' or 'hard_example'"
        )
    hard = mining_type == "hard_example"
    loss, match = to_host(ClsLoss), to_host(MatchIndices).copy()
    loss = loss.reshape(match.shape)
    if hard and LocLoss is not None:
        loss = loss + to_host(LocLoss).reshape(match.shape)
    negative = (match == -1) & (to_host(MatchDist) < neg_dist_threshold)
    found = []
    for i, eligible in enumerate(np.ones_like(negative) if hard else negative):
        places = np.flatnonzero(eligible)
        wanted = sample_size if hard else int((match[i] != -1).sum() * neg_pos_ratio)
        chosen = places[np.argsort(-loss[i, places], kind="stable")[:wanted]]
        if hard:
            dropped = (match[i] > -1) & ~np.isin(np.arange(match.shape[1]), chosen)
            chosen = chosen[match[i, chosen] == -1]
            match[i, dropped] = -1
        found.append(np.sort(chosen))
    flat = np.concatenate(found).astype(np.int32).reshape(-1, 1)
    lod = (from_lengths(np.array([len(part) for part in found])),)
    return WithLoD(xp.asarray(flat), lod), xp.asarray(match)
