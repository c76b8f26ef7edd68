"""Losses over many classes that look at few of them: noise contrast, a tree of classes, sampled
softmax.

Samples are drawn by position, trainer and step, like every random number here.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.arrays.random import Key
from bireme.arrays.values import SelectedRows
from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator, VarType, grad_name

from .activations import sigmoid_of
from .table import GradOp, Infer, OpSpec, gradient_shapes, op

_UNIFORM, _LOG_UNIFORM, _CUSTOM = range(3)


# -- nce ---------------------------------------------------------------------------------------
def _nce_rule(ctx: Infer) -> None:
    x, label = ctx.x("Input"), ctx.x("Label")
    if x.shape[0] != label.shape[0] and x.shape[0] >= 0 and label.shape[0] >= 0:
        raise InvalidArgument(f"nce: {list(x.shape)} and labels {list(label.shape)} differ in rows")
    true = label.shape[1] if len(label.shape) > 1 else 1
    custom = ctx.attr("custom_neg_classes")
    drawn = len(custom) if custom else ctx.attr("num_neg_samples")
    ctx.set("Cost", (x.shape[0], 1), like=x)
    ctx.set("SampleLogits", (x.shape[0], true + drawn), x.dtype)
    ctx.set("SampleLabels", (x.shape[0], true + drawn), VarType.INT64)


_NCE_USES = (
    "Input",
    "Label",
    "Bias",
    "Weight",
    "SampleLogits",
    "SampleLabels",
    "SampleWeight",
    "CustomDistProbs",
    "CustomDistAlias",
    "CustomDistAliasProbs",
)


def rows_where_sparse(slot: str, source: str) -> Any:
    """The shape rule of gradients; the one of `source` is selected rows where `is_sparse` is
    set.
    """

    def rule(ctx: Infer) -> None:
        gradient_shapes(ctx)
        if ctx.attr("is_sparse"):
            ctx.set(slot, like=ctx.x(source), type=VarType.SELECTED_ROWS)

    return rule


@op(
    "nce",
    infer=_nce_rule,
    grad=GradOp(uses=_NCE_USES, wrt=("Input", "Weight", "Bias"), of=("Cost",)),
    returns="Cost SampleLogits SampleLabels",
    lod=None,
)
def nce(
    xp: Array,
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array,
    SampleWeight: Array,
    CustomDistProbs: Array,
    num_total_classes: int,
    num_neg_samples: int,
    sampler: int | None,
    custom_neg_classes: tuple[int, ...] | None,
    key: Key,
) -> tuple[Array, Array, Array]:
    """Logistic losses of telling true classes from drawn ones; SampleLogits holds probabilities."""
    label = Label.reshape(len(Input), -1)
    if custom_neg_classes:
        drawn = xp.broadcast_to(xp.array(custom_neg_classes), (len(Input), len(custom_neg_classes)))
    else:
        shape = (len(Input), num_neg_samples)
        drawn = draw(xp, key, shape, num_total_classes, sampler or _UNIFORM, CustomDistProbs)
    samples = xp.concatenate([label, drawn.astype(xp.int64)], axis=1)
    logits = xp.einsum("bd,bsd->bs", Input, Weight[samples])
    if Bias is not None:
        logits += Bias.reshape(-1)[samples]
    guess = sigmoid_of(xp, logits)
    noise = _noise(
        xp, samples, num_total_classes, sampler or _UNIFORM, CustomDistProbs, Input.dtype
    )
    noise *= Input.dtype.type(num_neg_samples)
    true = label.shape[1]
    cost = -xp.log(guess[:, :true] / (guess[:, :true] + noise[:, :true])).sum(1, keepdims=True)
    cost -= xp.log(noise[:, true:] / (guess[:, true:] + noise[:, true:])).sum(1, keepdims=True)
    if SampleWeight is not None:
        cost *= SampleWeight.reshape(-1, 1)[: len(Input)]
    return cost, guess, samples


def draw(
    xp: Array, key: Key, shape: tuple[int, int], classes: int, sampler: int, probabilities: Array
) -> Array:
    """Classes drawn with the sampler's probabilities; the log-uniform law leaves out the last
    class.
    """
    if sampler == _UNIFORM:
        return key.randint(xp, shape, 0, classes)
    at = key.uniform(xp, shape, dtype="float64")
    if sampler == _LOG_UNIFORM:
        found = xp.exp(at * xp.log(xp.float64(classes))).astype(xp.int64) - 1
        return xp.minimum(found, classes - 1)
    ends = xp.cumsum(probabilities.astype(xp.float64))
    return xp.minimum(xp.searchsorted(ends, at * ends[-1], side="right"), classes - 1)


def _noise(
    xp: Array, samples: Array, classes: int, sampler: int, probabilities: Array, dtype: Any
) -> Array:
    """The probability that the sampler draws each class."""
    if sampler == _CUSTOM:
        return probabilities[samples].astype(dtype)
    if sampler == _LOG_UNIFORM:
        rank = samples.astype(xp.float64)
        return (xp.log((rank + 2) / (rank + 1)) / xp.log(xp.float64(classes))).astype(dtype)
    return xp.full(samples.shape, 1 / classes, dtype=dtype)


@op("nce_grad", infer=rows_where_sparse("Weight@GRAD", "Weight"))
def nce_grad(
    xp: Array,
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array,
    SampleLogits: Array,
    SampleLabels: Array,
    SampleWeight: Array,
    CustomDistProbs: Array,
    dCost: Array,
    num_total_classes: int,
    num_neg_samples: int,
    sampler: int | None,
    is_sparse: bool,
    need: frozenset[str],
) -> tuple[Array, Array, Array]:
    guess, samples = SampleLogits, SampleLabels
    noise = _noise(
        xp, samples, num_total_classes, sampler or _UNIFORM, CustomDistProbs, guess.dtype
    )
    noise *= guess.dtype.type(num_neg_samples)
    true = Label.reshape(len(Input), -1).shape[1]
    slope = guess * (1 - guess) / (guess + noise)
    slope[:, :true] = -noise[:, :true] * (1 - guess[:, :true]) / (guess + noise)[:, :true]
    slope *= dCost.reshape(-1, 1)
    if SampleWeight is not None:
        slope *= SampleWeight.reshape(-1, 1)[: len(Input)]
    dx = xp.einsum("bs,bsd->bd", slope, Weight[samples]) if "Input@GRAD" in need else None
    dw = db = None
    if "Weight@GRAD" in need:
        share = (slope[..., None] * Input[:, None]).reshape(-1, Input.shape[1])
        dw = summed_rows(xp, Weight, samples.reshape(-1), share, is_sparse)
    if "Bias@GRAD" in need:
        db = xp.bincount(samples.reshape(-1), slope.reshape(-1), Bias.size)
        db = db.astype(Bias.dtype).reshape(Bias.shape)
    return dx, dw, db


def summed_rows(xp: Array, like: Array, ids: Array, share: Array, sparse: bool) -> Array:
    """The gradient of a table whose rows `ids` were used: selected rows, or the whole table."""
    if sparse:
        return SelectedRows(ids, share, len(like)).merged()
    dense = xp.zeros(like.shape, dtype=share.dtype)
    xp.add.at(dense, ids, share.reshape(-1, *like.shape[1:]))
    return dense


# -- hierarchical sigmoid ----------------------------------------------------------------------
def _tree_rule(ctx: Infer) -> None:
    ctx.set("Out", (ctx.x("X").shape[0], 1), like=ctx.x("X"))


_TREE_USES = ("X", "W", "Label", "PathTable", "PathCode", "Bias", "PreOut")


@op(
    "hierarchical_sigmoid",
    infer=_tree_rule,
    grad=GradOp(uses=_TREE_USES, wrt=("X", "W", "Bias"), of=("Out",)),
    returns="Out PreOut W_Out",
    inplace={"W_Out": "W"},
)
def hierarchical_sigmoid(
    xp: Array,
    X: Array,
    W: Array,
    Label: Array,
    PathTable: Array,
    PathCode: Array,
    Bias: Array,
    num_classes: int,
) -> tuple[Array, Array, Array]:
    """The sum of logistic losses of the turns from the root to the label's leaf.

    As in Fluid, the steps that a short way lacks add log 2 each; no gradient comes from them.
    """
    nodes, turns, there = _path(xp, Label, PathTable, PathCode, num_classes)
    score = xp.einsum("bd,bsd->bs", X, W[nodes])
    if Bias is not None:
        score += Bias.reshape(-1)[nodes]
    score = xp.clip(score, -40, 40) * there
    turns = turns.astype(X.dtype)
    loss = (xp.log1p(xp.exp(score)) - turns * score).sum(1, keepdims=True)
    return loss, score, W


def _path(
    xp: Array, label: Array, table: Array, code: Array, classes: int
) -> tuple[Array, Array, Array]:
    """Inner nodes on the way to each label, the turn taken at each, and which entries count."""
    if table is not None:
        rows = table if len(table) == label.size else table[label.reshape(-1)]
        bits = code if len(code) == label.size else code[label.reshape(-1)]
        there = rows >= 0
        return xp.where(there, rows, 0), (bits != 0) & there, there
    leaf = label.reshape(-1, 1) + classes
    depth = xp.arange(int(2 * classes - 1).bit_length() - 1)
    above = leaf >> (depth + 1)
    there = above > 0
    return xp.where(there, above - 1, 0), ((leaf >> depth) & 1) * there, there


@op("hierarchical_sigmoid_grad", infer=rows_where_sparse("W@GRAD", "W"))
def hierarchical_sigmoid_grad(
    xp: Array,
    X: Array,
    W: Array,
    Label: Array,
    PathTable: Array,
    PathCode: Array,
    Bias: Array,
    PreOut: Array,
    dOut: Array,
    num_classes: int,
    is_sparse: bool,
    need: frozenset[str],
) -> tuple[Array, Array, Array]:
    nodes, turns, there = _path(xp, Label, PathTable, PathCode, num_classes)
    slope = ((sigmoid_of(xp, PreOut) - turns) * there * dOut.reshape(-1, 1)).astype(X.dtype)
    dx = xp.einsum("bs,bsd->bd", slope, W[nodes]) if "X@GRAD" in need else None
    used, flat = nodes[there], slope[there]
    dw = db = None
    if "W@GRAD" in need:
        share = (slope[..., None] * X[:, None])[there]
        dw = summed_rows(xp, W, used, share, is_sparse)
    if "Bias@GRAD" in need:
        db = xp.bincount(used, flat, Bias.size).astype(Bias.dtype).reshape(Bias.shape)
    return dx, dw, db


# -- sampled softmax ---------------------------------------------------------------------------
def _sample_rule(ctx: Infer) -> None:
    x, labels = ctx.x("Logits"), ctx.x("Labels")
    width = labels.shape[1] + ctx.attr("num_samples")
    for slot in ("Probabilities", "SampledLogits"):
        ctx.set(slot, (x.shape[0], width), like=x)
    ctx.set("Samples", (x.shape[0], width), VarType.INT64)
    ctx.set("SampledLabels", labels.shape, VarType.INT64)
    ctx.set("LogitsDim", (*x.shape, 0), x.dtype)
    ctx.set("LabelsDim", (*labels.shape, 0))


def _sample_gradient(op: Operator, block: Block) -> list[OpSpec]:
    inputs = {
        "LogitsDim": op.output("LogitsDim"),
        "LabelsDim": op.output("LabelsDim"),
        "Samples": op.output("Samples"),
        "SampledLogits@GRAD": [grad_name(n) for n in op.output("SampledLogits")],
    }
    outputs = {"Logits@GRAD": [grad_name(n) for n in op.input("Logits")]}
    return [OpSpec("sample_logits_grad", inputs, outputs, op.attrs)]


@op(
    "sample_logits",
    infer=_sample_rule,
    grad=_sample_gradient,
    returns="SampledLogits SampledLabels Samples Probabilities LogitsDim LabelsDim",
    lod=None,
)
def sample_logits(
    xp: Array,
    Logits: Array,
    Labels: Array,
    CustomizedSamples: Array,
    CustomizedProbabilities: Array,
    num_samples: int,
    remove_accidental_hits: bool,
    use_customized_samples: bool,
    key: Key,
) -> tuple[Array, ...]:
    """Logits of the true and of drawn classes, each less the logarithm of its expected count."""
    count, true = len(Logits), Labels.shape[1]
    if use_customized_samples:
        samples, chances = CustomizedSamples, CustomizedProbabilities
    else:
        drawn, tries = _distinct(xp, key, Logits.shape[1], num_samples)
        samples = xp.concatenate([Labels, xp.broadcast_to(drawn, (count, num_samples))], axis=1)
        chances = _noise(xp, samples, Logits.shape[1] + 1, _LOG_UNIFORM, None, xp.float64)
        chances = -xp.expm1(tries * xp.log1p(-chances)).astype(Logits.dtype)
    picked = xp.take_along_axis(Logits, samples, 1)
    if remove_accidental_hits:
        hits = (samples[:, true:, None] == Labels[:, None, :]).any(-1)
        picked[:, true:] -= hits * Logits.dtype.type(1e20)
    picked -= xp.log(chances)
    own = xp.broadcast_to(xp.arange(true), (count, true)).astype(xp.int64)
    empty = [xp.empty((*a.shape, 0), dtype=a.dtype) for a in (Logits, Labels)]
    return picked, own.copy(), samples.astype(xp.int64), chances, *empty


def _distinct(xp: Array, key: Key, classes: int, wanted: int) -> tuple[Array, int]:
    """Different classes by the log-uniform law, and how many draws that took."""
    if wanted > classes:
        raise InvalidArgument(f"{wanted} different samples of {classes} classes do not exist")
    drawn = xp.empty(0, dtype=xp.int64)
    tries = 0
    while True:
        more = draw(xp, key.at(tries), (1, 2 * wanted), classes + 1, _LOG_UNIFORM, None)[0]
        drawn, tries = xp.concatenate([drawn, more]), tries + 2 * wanted
        values, first = xp.unique(drawn, return_index=True)
        if len(values) >= wanted:
            places = xp.sort(first)[:wanted]
            return drawn[places], int(places[-1]) + 1


@op(
    "sample_logits_grad",
    infer=gradient_shapes,
    ins={"LogitsDim": "", "LabelsDim": "", "Samples": "", "SampledLogits@GRAD": ""},
    outs={"Logits@GRAD": ""},
)
def sample_logits_grad(xp: Array, LogitsDim: Array, Samples: Array, dSampledLogits: Array) -> Array:
    dx = xp.zeros(LogitsDim.shape[:-1], dtype=dSampledLogits.dtype)
    xp.add.at(dx, (xp.arange(len(dx))[:, None], Samples), dSampledLogits)
    return dx
