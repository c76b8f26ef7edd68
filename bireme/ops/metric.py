"""Measures of quality: accuracy, area under the curve, mean overlap."""

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .fill import numbers
from .table import GradOp, Infer, no_gradient, op


# -- top_k and accuracy ------------------------------------------------------------------------
def _top_rule(ctx: Infer) -> None:
    x, k = ctx.x("X"), ctx.attr("k")
    if ctx.input("K") is None and x.shape[-1] >= 0 and not 0 < k <= x.shape[-1]:
        raise InvalidArgument(f"top_k: k={k} does not fit {list(x.shape)}")
    ctx.set("Out", (*x.shape[:-1], k), like=x)
    ctx.set("Indices", (*x.shape[:-1], k), like=x, dtype=VarType.INT64)


@op(
    "top_k",
    infer=_top_rule,
    grad=GradOp(uses=("X", "Indices"), wrt=("X",), of=("Out",)),
    returns="Out Indices",
)
def top_k(xp: Array, X: Array, K: Array, k: int) -> tuple[Array, Array]:
    """The largest first; of equal ones the earliest."""
    count = k if K is None else numbers(K)[0]
    if count == 1:
        first = xp.argmax(X, axis=-1)[..., None]
        return xp.take_along_axis(X, first, -1), first.astype(xp.int64, copy=False)
    order = xp.argsort(-X, axis=-1, kind="stable")[..., :count]
    return xp.take_along_axis(X, order, -1), order.astype(xp.int64, copy=False)


@op("top_k_grad")
def top_k_grad(xp: Array, X: Array, Indices: Array, dOut: Array) -> Array:
    rows = xp.zeros((X.size // X.shape[-1], X.shape[-1]), dtype=dOut.dtype)
    picked = Indices.reshape(-1, Indices.shape[-1])
    rows[xp.arange(len(rows))[:, None], picked] = dOut.reshape(picked.shape)
    return rows.reshape(X.shape)


def _accuracy_rule(ctx: Infer) -> None:
    ctx.set("Accuracy", (1,), VarType.FP32, lod_level=0)
    ctx.set("Correct", (1,), VarType.INT32, lod_level=0)
    ctx.set("Total", (1,), VarType.INT32, lod_level=0)


@op("accuracy", infer=_accuracy_rule, grad=no_gradient, returns="Accuracy Correct Total", lod=None)
def accuracy(xp: Array, Indices: Array, Label: Array) -> tuple[Array, Array, Array]:
    hit = (Indices == Label.reshape(-1, 1)).any(1)
    correct = hit.sum(dtype=xp.int32).reshape(1)
    total = xp.full(1, len(hit), dtype=xp.int32)
    return (correct / max(len(hit), 1)).astype(xp.float32), correct, total


# -- auc ---------------------------------------------------------------------------------------
def _auc_rule(ctx: Infer) -> None:
    ctx.set("AUC", (1,), VarType.FP64, lod_level=0)
    for out, source in (("StatPosOut", "StatPos"), ("StatNegOut", "StatNeg")):
        ctx.set(out, like=ctx.x(source))


@op(
    "auc",
    infer=_auc_rule,
    grad=no_gradient,
    returns="AUC StatPosOut StatNegOut",
    lod=None,
    inplace={"StatPosOut": "StatPos", "StatNegOut": "StatNeg"},
)
def auc(
    xp: Array,
    Predict: Array,
    Label: Array,
    StatPos: Array,
    StatNeg: Array,
    num_thresholds: int,
    slide_steps: int,
    curve: str,
) -> tuple[Array, Array, Array]:
    """Histograms of the scores of both classes, and the area that they give.

    With `slide_steps` the statistics hold one histogram per step, oldest first, then their sum.
    """
    score = Predict[:, -1]
    bucket = (score * score.dtype.type(num_thresholds)).astype(xp.int64)
    if bucket.size and bool(((bucket < 0) | (bucket > num_thresholds)).any()):
        raise InvalidArgument("auc: predictions must lie between 0 and 1")
    positive = Label.reshape(-1) != 0
    size = num_thresholds + 1
    pos = _slid(xp, StatPos, xp.bincount(bucket[positive], minlength=size), slide_steps)
    neg = _slid(xp, StatNeg, xp.bincount(bucket[~positive], minlength=size), slide_steps)
    area = _area(xp, pos.reshape(-1)[-size:], neg.reshape(-1)[-size:], curve)
    return xp.asarray(area, dtype=xp.float64).reshape(1), pos, neg


def _slid(xp: Array, stat: Array, batch: Array, steps: int) -> Array:
    """The statistics after one more batch; without steps they only grow."""
    batch = batch.astype(stat.dtype, copy=False)
    if not steps:
        return stat + batch.reshape(stat.shape)
    parts = stat.reshape(-1)[: (steps + 1) * len(batch)].reshape(steps + 1, len(batch))
    parts = xp.concatenate([parts[1:-1], batch[None], (parts[-1] - parts[0] + batch)[None]])
    rest = stat.reshape(-1)[parts.size :]
    return xp.concatenate([parts.reshape(-1), rest]).reshape(stat.shape)


def _area(xp: Array, pos: Array, neg: Array, curve: str) -> Array:
    """Trapezoids under the curve, from the highest threshold to the lowest."""
    true = xp.concatenate([xp.zeros(1), xp.cumsum(pos[::-1], dtype=xp.float64)])
    false = xp.concatenate([xp.zeros(1), xp.cumsum(neg[::-1], dtype=xp.float64)])
    if curve == "PR":
        precision = true / xp.maximum(true + false, 1e-12)
        return xp.sum(xp.diff(true) * (precision[1:] + precision[:-1]) / 2) / xp.maximum(
            true[-1], 1e-12
        )
    area = xp.sum(xp.diff(false) * (true[1:] + true[:-1]) / 2)
    whole = true[-1] * false[-1]
    return xp.where(whole > 0, area / xp.maximum(whole, 1e-300), 0.0)


# -- mean_iou ----------------------------------------------------------------------------------
def _iou_rule(ctx: Infer) -> None:
    classes = ctx.attr("num_classes")
    ctx.set("OutMeanIou", (1,), VarType.FP32)
    ctx.set("OutWrong", (classes,), VarType.INT32)
    ctx.set("OutCorrect", (classes,), VarType.INT32)


@op("mean_iou", infer=_iou_rule, returns="OutMeanIou OutWrong OutCorrect", lod=None)
def mean_iou(
    xp: Array,
    Predictions: Array,
    Labels: Array,
    InMeanIou: list[Array] | None,
    InWrongs: list[Array] | None,
    InCorrects: list[Array] | None,
    num_classes: int,
) -> tuple[Array, Array, Array]:
    guess, truth = Predictions.reshape(-1), Labels.reshape(-1)
    hit = guess == truth
    correct = sum(InCorrects or (), _count(xp, truth[hit], num_classes))
    missed = _count(xp, truth[~hit], num_classes) + _count(xp, guess[~hit], num_classes)
    wrong = sum(InWrongs or (), missed)
    seen = correct + wrong > 0
    share = correct / xp.maximum(correct + wrong, 1)
    average = (share.sum() / xp.maximum(seen.sum(), 1)).astype(xp.float32).reshape(1)
    return sum(InMeanIou or (), average), wrong, correct


def _count(xp: Array, ids: Array, classes: int) -> Array:
    return xp.bincount(ids, minlength=classes).astype(xp.int32)
