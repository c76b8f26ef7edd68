"""Losses of single numbers: regression, ranking, probabilities."""

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .activations import sigmoid_of
from .shapes import Rule
from .table import GradOp, Infer, op

Pair = tuple[Array, Array]


def _must_agree(ctx: Infer, first: str, second: str) -> None:
    x, y = ctx.x(first), ctx.x(second)
    fits = all(m == n or m < 0 or n < 0 for m, n in zip(x.shape, y.shape, strict=False))
    if len(x.shape) != len(y.shape) or not fits:
        raise InvalidArgument(
            f"{ctx.op.type}: {first} {list(x.shape)} and {second} {list(y.shape)} differ"
        )


def _like(first: str, second: str, *outputs: str) -> Rule:
    """Outputs look like `first`, which must have the shape of `second`."""

    def rule(ctx: Infer) -> None:
        _must_agree(ctx, first, second)
        for slot in outputs:
            ctx.set(slot, like=ctx.x(first))

    return rule


def _fitted(x: Array, like: Array) -> Array:
    """x in the shape of `like`: a row fed for a column must not spread over it."""
    return x if x.shape == like.shape else x.reshape(like.shape)


# -- probabilities -----------------------------------------------------------------------------
@op(
    "sigmoid_cross_entropy_with_logits",
    infer=_like("X", "Label", "Out"),
    grad=GradOp(uses=("X", "Label"), wrt=("X",)),
)
def sigmoid_cross_entropy_with_logits(
    xp: Array, X: Array, Label: Array, ignore_index: int, normalize: bool
) -> Array:
    Label = _fitted(Label, X)
    loss = xp.maximum(X, 0) - X * Label + xp.log1p(xp.exp(-xp.abs(X)))
    return _counted(xp, loss, Label, ignore_index, normalize)


@op("sigmoid_cross_entropy_with_logits_grad")
def sigmoid_cross_entropy_with_logits_grad(
    xp: Array, X: Array, Label: Array, dOut: Array, ignore_index: int, normalize: bool
) -> Array:
    Label = _fitted(Label, X)
    share = (sigmoid_of(xp, X) - Label) * dOut
    return _counted(xp, share, Label, ignore_index, normalize)


def _counted(xp: Array, values: Array, label: Array, ignored: int, normalize: bool) -> Array:
    """`values` without those of ignored labels, divided by how many are left if that is asked."""
    out = label == label.dtype.type(ignored)
    values[out] = 0
    if normalize:
        values /= xp.maximum(values.size - out.sum(), 1).astype(values.dtype)
    return values


@op(
    "log_loss",
    infer=_like("Predicted", "Labels", "Loss"),
    grad=GradOp(uses=("Predicted", "Labels"), wrt=("Predicted",)),
    lod="Predicted",
)
def log_loss(xp: Array, Predicted: Array, Labels: Array, epsilon: float) -> Array:
    small, Labels = Predicted.dtype.type(epsilon), _fitted(Labels, Predicted)
    return -Labels * xp.log(Predicted + small) - (1 - Labels) * xp.log(1 - Predicted + small)


@op("log_loss_grad")
def log_loss_grad(
    xp: Array, Predicted: Array, Labels: Array, dLoss: Array, epsilon: float
) -> Array:
    small, Labels = Predicted.dtype.type(epsilon), _fitted(Labels, Predicted)
    return dLoss * ((1 - Labels) / (1 - Predicted + small) - Labels / (Predicted + small))


def _divergence_rule(ctx: Infer) -> None:
    _must_agree(ctx, "X", "Target")
    whole = ctx.attr("reduction") == "none"
    ctx.set("Loss", ctx.x("X").shape if whole else (1,), like=ctx.x("X"))


@op("kldiv_loss", infer=_divergence_rule, grad=GradOp(uses=("X", "Target"), wrt=("X",)), lod=None)
def kldiv_loss(xp: Array, X: Array, Target: Array, reduction: str) -> Array:
    """Target * (log Target - X), nothing where Target is not positive."""
    known = xp.where(Target > 0, Target, Target.dtype.type(1))
    loss = xp.where(Target > 0, Target * (xp.log(known) - X), Target.dtype.type(0))
    if reduction == "none":
        return loss
    return loss.sum(dtype=loss.dtype).reshape(1) / loss.dtype.type(_parts(X, reduction))


@op("kldiv_loss_grad")
def kldiv_loss_grad(xp: Array, X: Array, Target: Array, dLoss: Array, reduction: str) -> Array:
    share = dLoss if reduction == "none" else dLoss.reshape(()) / X.dtype.type(_parts(X, reduction))
    return xp.where(Target > 0, -Target * share, Target.dtype.type(0))


def _parts(x: Array, reduction: str) -> int:
    """What the sum of the loss is divided by."""
    return int({"mean": x.size, "batchmean": x.shape[0]}.get(reduction, 1))


def _bce_rule(ctx: Infer) -> None:
    _must_agree(ctx, "X", "Label")
    ctx.set("Out", like=ctx.x("X"))


@op("bce_loss", infer=_bce_rule, grad=GradOp(uses=("X", "Label"), wrt=("X",)))
def bce_loss(xp: Array, X: Array, Label: Array) -> Array:
    limit, Label = X.dtype.type(-100), _fitted(Label, X)
    far = xp.maximum(xp.log(1 - X), limit)
    return -Label * xp.maximum(xp.log(X), limit) - (1 - Label) * far


@op("bce_loss_grad")
def bce_loss_grad(xp: Array, X: Array, Label: Array, dOut: Array) -> Array:
    return dOut * (X - _fitted(Label, X)) / xp.maximum((1 - X) * X, X.dtype.type(1e-12))


def _smoothed_rule(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


@op("label_smooth", infer=_smoothed_rule, grad=GradOp(wrt=("X",)))
def label_smooth(xp: Array, X: Array, PriorDist: Array, epsilon: float) -> Array:
    kind = X.dtype.type
    spread = (
        kind(epsilon / X.shape[-1]) if PriorDist is None else kind(epsilon) * PriorDist.reshape(-1)
    )
    return X * kind(1 - epsilon) + spread


@op("label_smooth_grad")
def label_smooth_grad(xp: Array, dOut: Array, epsilon: float) -> Array:
    return dOut * dOut.dtype.type(1 - epsilon)


# -- regression --------------------------------------------------------------------------------
def _smooth_rule(ctx: Infer) -> None:
    _must_agree(ctx, "X", "Y")
    x = ctx.x("X")
    ctx.set("Diff", like=x)
    ctx.set("Out", (x.shape[0], 1), like=x)


@op(
    "smooth_l1_loss",
    infer=_smooth_rule,
    grad=GradOp(uses=("Diff", "InsideWeight", "OutsideWeight"), wrt=("X", "Y"), of=("Out",)),
    returns="Out Diff",
    lod=None,
)
def smooth_l1_loss(
    xp: Array, X: Array, Y: Array, InsideWeight: Array, OutsideWeight: Array, sigma: float
) -> Pair:
    diff = X - _fitted(Y, X)
    if InsideWeight is not None:
        diff *= InsideWeight
    far, square = xp.abs(diff), X.dtype.type(sigma * sigma)
    half = X.dtype.type(0.5)
    loss = xp.where(far < 1 / square, half * square * diff * diff, far - half / square)
    if OutsideWeight is not None:
        loss *= OutsideWeight
    return loss.reshape(len(X), -1).sum(1, keepdims=True), diff


@op("smooth_l1_loss_grad")
def smooth_l1_loss_grad(
    xp: Array,
    Diff: Array,
    InsideWeight: Array,
    OutsideWeight: Array,
    dOut: Array,
    sigma: float,
    need: frozenset[str],
) -> Pair:
    square = Diff.dtype.type(sigma * sigma)
    slope = xp.where(xp.abs(Diff) < 1 / square, square * Diff, xp.sign(Diff))
    for weight in (InsideWeight, OutsideWeight):
        if weight is not None:
            slope *= weight
    slope *= dOut.reshape(-1, *(1,) * (Diff.ndim - 1))
    return slope if "X@GRAD" in need else None, -slope if "Y@GRAD" in need else None


@op(
    "huber_loss",
    infer=_like("X", "Y", "Out", "Residual"),
    grad=GradOp(uses=("Residual",), wrt=("X", "Y"), of=("Out",)),
    returns="Out Residual",
)
def huber_loss(xp: Array, X: Array, Y: Array, delta: float) -> Pair:
    residual, limit = _fitted(Y, X) - X, X.dtype.type(delta)
    half, far = X.dtype.type(0.5), xp.abs(residual)
    loss = xp.where(far <= limit, half * residual * residual, limit * (far - half * limit))
    return loss, residual


@op("huber_loss_grad")
def huber_loss_grad(
    xp: Array, Residual: Array, dOut: Array, delta: float, need: frozenset[str]
) -> Pair:
    limit = Residual.dtype.type(delta)
    slope = xp.clip(Residual, -limit, limit) * dOut
    return -slope if "X@GRAD" in need else None, slope if "Y@GRAD" in need else None


@op(
    "modified_huber_loss",
    infer=_like("X", "Y", "Out", "IntermediateVal"),
    grad=GradOp(uses=("Y", "IntermediateVal"), wrt=("X",), of=("Out",)),
    returns="Out IntermediateVal",
)
def modified_huber_loss(xp: Array, X: Array, Y: Array) -> Pair:
    """Y is 0 or 1; the margin is X times -1 or 1."""
    margin = X * (2 * _fitted(Y, X) - 1)
    loss = xp.where(margin < -1, -4 * margin, xp.square(xp.maximum(1 - margin, 0)))
    return loss, margin


@op("modified_huber_loss_grad")
def modified_huber_loss_grad(xp: Array, Y: Array, IntermediateVal: Array, dOut: Array) -> Array:
    sign = 2 * _fitted(Y, IntermediateVal) - 1
    slope = xp.where(
        IntermediateVal < -1, sign.dtype.type(-4), -2 * xp.maximum(1 - IntermediateVal, 0)
    )
    return slope * sign * dOut


@op(
    "hinge_loss",
    infer=_like("Logits", "Labels", "Loss"),
    grad=GradOp(uses=("Logits", "Labels"), wrt=("Logits",)),
)
def hinge_loss(xp: Array, Logits: Array, Labels: Array) -> Array:
    return xp.maximum(1 - Logits * (2 * _fitted(Labels, Logits) - 1), 0)


@op("hinge_loss_grad")
def hinge_loss_grad(xp: Array, Logits: Array, Labels: Array, dLoss: Array) -> Array:
    sign = 2 * _fitted(Labels, Logits) - 1
    return -dLoss * sign * (Logits * sign < 1)


def _distance_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("sub_result", like=x)
    ctx.set("Out", (x.shape[0], 1), like=x)


@op(
    "squared_l2_distance",
    infer=_distance_rule,
    grad=GradOp(uses=("X", "Y", "sub_result"), wrt=("X", "Y"), of=("Out",)),
    returns="Out sub_result",
)
def squared_l2_distance(xp: Array, X: Array, Y: Array) -> Pair:
    """Y has as many rows as X, or one row that stands for all."""
    difference = X.reshape(len(X), -1) - Y.reshape(len(Y), -1)
    return (difference * difference).sum(1, keepdims=True), difference.reshape(X.shape)


@op("squared_l2_distance_grad")
def squared_l2_distance_grad(
    xp: Array, Y: Array, sub_result: Array, dOut: Array, need: frozenset[str]
) -> Pair:
    slope = 2 * sub_result * dOut.reshape(-1, *(1,) * (sub_result.ndim - 1))
    dy = None
    if "Y@GRAD" in need:
        dy = -slope if len(Y) == len(slope) else -slope.sum(0, keepdims=True)
    return slope if "X@GRAD" in need else None, dy


# -- ranking -----------------------------------------------------------------------------------
def _rank_rule(ctx: Infer) -> None:
    _must_agree(ctx, "Left", "Right")
    ctx.set("Out", ctx.x("Label").shape, like=ctx.x("Left"))


@op(
    "rank_loss",
    infer=_rank_rule,
    grad=GradOp(uses=("Label", "Left", "Right"), wrt=("Left", "Right")),
    lod=None,
)
def rank_loss(xp: Array, Label: Array, Left: Array, Right: Array) -> Array:
    """Label and scores may be columns or rows: as many elements, in the shape of the label."""
    margin = (Left - Right).reshape(Label.shape)
    return xp.maximum(margin, 0) + xp.log1p(xp.exp(-xp.abs(margin))) - Label * margin


@op("rank_loss_grad")
def rank_loss_grad(
    xp: Array, Label: Array, Left: Array, Right: Array, dOut: Array, need: frozenset[str]
) -> Pair:
    slope = dOut.reshape(Left.shape) * (sigmoid_of(xp, Left - Right) - Label.reshape(Left.shape))
    return slope if "Left@GRAD" in need else None, -slope if "Right@GRAD" in need else None


@op(
    "margin_rank_loss",
    infer=_like("X1", "X2", "Out", "Activated"),
    grad=GradOp(uses=("Label", "Activated"), wrt=("X1", "X2"), of=("Out",)),
    returns="Out Activated",
    lod=None,
)
def margin_rank_loss(xp: Array, Label: Array, X1: Array, X2: Array, margin: float) -> Pair:
    loss = xp.maximum(-_fitted(Label, X1) * (X1 - X2) + X1.dtype.type(margin), 0)
    return loss, (loss > 0).astype(X1.dtype)


@op("margin_rank_loss_grad")
def margin_rank_loss_grad(
    xp: Array, Label: Array, Activated: Array, dOut: Array, need: frozenset[str]
) -> Pair:
    slope = dOut * Activated * _fitted(Label, dOut)
    return -slope if "X1@GRAD" in need else None, slope if "X2@GRAD" in need else None


def _pairs_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Y", (*x.shape[:-1], 1), like=x)


@op("bpr_loss", infer=_pairs_rule, grad=GradOp(uses=("X", "Label"), wrt=("X",)))
def bpr_loss(xp: Array, X: Array, Label: Array) -> Array:
    """The mean over the other classes of -log sigmoid(x_label - x_other)."""
    margins, others = _margins(xp, X, Label)
    loss = xp.maximum(-margins, 0) + xp.log1p(xp.exp(-xp.abs(margins)))
    return (loss * others).sum(-1, keepdims=True) / X.dtype.type(X.shape[-1] - 1)


@op("bpr_loss_grad")
def bpr_loss_grad(xp: Array, X: Array, Label: Array, dY: Array) -> Array:
    margins, others = _margins(xp, X, Label)
    slope = sigmoid_of(xp, -margins) * others * (dY / X.dtype.type(X.shape[-1] - 1))
    return slope - ~others * slope.sum(-1, keepdims=True)


def _margins(xp: Array, x: Array, label: Array) -> Pair:
    """How far the label's score lies above each score, and which scores are not the label's."""
    label = label.reshape(*x.shape[:-1], 1)
    return xp.take_along_axis(x, label, -1) - x, xp.arange(x.shape[-1]) != label


@op(
    "teacher_student_sigmoid_loss",
    infer=_pairs_rule,
    grad=GradOp(uses=("X", "Label"), wrt=("X",)),
)
def teacher_student_sigmoid_loss(xp: Array, X: Array, Label: Array) -> Array:
    """Labels say click (-1 or below, or from 1 on) and teacher's score (what lies above 0)."""
    plain = xp.maximum(X, 0) + xp.log1p(xp.exp(-xp.abs(X)))
    click, score, taught = _teacher(xp, _fitted(Label, X))
    return plain - X * click + (plain - X * score) * taught


@op("teacher_student_sigmoid_loss_grad")
def teacher_student_sigmoid_loss_grad(
    xp: Array,
    X: Array,
    Label: Array,
    dY: Array,
    soft_max_up_bound: float,
    soft_max_lower_bound: float,
) -> Array:
    high, low = X.dtype.type(soft_max_up_bound), X.dtype.type(soft_max_lower_bound)
    click, score, taught = _teacher(xp, _fitted(Label, X))
    guess = sigmoid_of(xp, xp.clip(X, low, high))
    slope = guess - click + (guess - score) * taught
    return dY * slope * ((low < X) & (high > X))


def _teacher(xp: Array, label: Array) -> tuple[Array, Array, Array]:
    """Click, the teacher's score, and whether there is a teacher."""
    click = (label >= 1) | ((label < 0) & (label >= -1))
    taught = label >= 0
    return click, xp.where(click, label - 1, label) * taught, taught
