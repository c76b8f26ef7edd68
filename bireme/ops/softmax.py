"""Softmax and the losses over classes that go with it."""

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .shapes import same_as
from .table import GradOp, Infer, op


def softmax_of(xp: Array, x: Array, axis: int, out: Array = None) -> Array:
    """exp(x) normalised along `axis`, without overflow."""
    out = xp.subtract(x, x.max(axis=axis, keepdims=True), out=out)
    xp.exp(out, out=out)
    out /= out.sum(axis=axis, keepdims=True)
    return out


@op(
    "softmax",
    infer=same_as("X"),
    grad=GradOp(uses=("Out",)),
    inplace={"Out": "X"},
    compiled="softmax",
)
def softmax(xp: Array, X: Array, axis: int, out: Array = None) -> Array:
    return softmax_of(xp, X, axis, out)


@op("softmax_grad", inplace={"X@GRAD": "Out@GRAD"}, compiled="softmax")
def softmax_grad(xp: Array, Out: Array, dOut: Array, axis: int, out: Array = None) -> Array:
    if axis in (-1, Out.ndim - 1):
        total = xp.einsum("...i,...i->...", dOut, Out)[..., None]
    else:
        total = (dOut * Out).sum(axis=axis, keepdims=True)
    out = xp.subtract(dOut, total, out=out)
    return xp.multiply(out, Out, out=out)


# -- cross entropy -----------------------------------------------------------------------------
def _classes_rule(ctx: Infer) -> None:
    """Labels stand in a last dimension of 1, or lack it; then the loss lacks it, too."""
    x, label, soft = ctx.x("X"), ctx.x("Label"), ctx.attr("soft_label")
    flat = not soft and len(label.shape) == len(x.shape) - 1
    single = x.shape[:-1] if flat else (*x.shape[:-1], 1)
    check_label(ctx, x.shape, label.shape, x.shape if soft else single)
    ctx.set("Y", single, like=x)
    ctx.set("XShape", (*x.shape, 0), x.dtype)
    ctx.set("MatchX", single, x.dtype)


def check_label(
    ctx: Infer, x: tuple[int, ...], label: tuple[int, ...], want: tuple[int, ...]
) -> None:
    """Refuse labels that do not have the shape wanted."""
    fits = all(m == n or m < 0 or n < 0 for m, n in zip(want, label, strict=False))
    if len(label) != len(want) or not fits:
        raise InvalidArgument(
            f"{ctx.op.type}: labels {list(label)} do not fit predictions {list(x)}",
            hint=f"labels of shape {list(want)} are needed",
        )


def classes_of(xp: Array, label: Array, classes: int, ignored: int) -> Array:
    """The labels as a flat index that is safe to use; ignored ones become 0.

    Raises:
        InvalidArgument: a label is no class.
    """
    flat = label.reshape(-1)
    if not flat.size or flat.view(f"u{flat.dtype.itemsize}").max() < classes:
        return flat
    outside = (flat < 0) | (flat >= classes)
    wrong = flat[outside & (flat != ignored)]
    if wrong.size:
        raise InvalidArgument(
            f"label {int(wrong[0])} is not one of {classes} classes",
            hint=f"labels run from 0 to {classes - 1}; ignore_index is {ignored}",
        )
    return xp.where(outside, 0, flat)


def picked(xp: Array, x: Array, index: Array) -> Array:
    """The element of each row of `x` at its index; the last dimension becomes 1."""
    rows = x.reshape(-1, x.shape[-1])
    return rows[xp.arange(len(rows)), index].reshape(*x.shape[:-1], 1)


def put(xp: Array, x: Array, index: Array, values: Array) -> Array:
    """`x` with the element of each row at its index set; `x` itself is used up."""
    rows = x.reshape(-1, x.shape[-1])
    rows[xp.arange(len(rows)), index] = values.reshape(-1)
    return rows.reshape(x.shape)


_LEAST = 1e-20


@op(
    "cross_entropy2",
    infer=_classes_rule,
    grad=GradOp(
        uses=("Label", "MatchX", "XShape"), wrt=("X",), of=("Y",), type="cross_entropy_grad2"
    ),
    returns="Y MatchX XShape",
)
def cross_entropy2(
    xp: Array, X: Array, Label: Array, ignore_index: int
) -> tuple[Array, Array, Array]:
    index = classes_of(xp, Label, X.shape[-1], ignore_index)
    match = picked(xp, X, index)
    if Label.ndim < X.ndim:
        match = match.reshape(X.shape[:-1])
    loss = xp.maximum(match, X.dtype.type(_LEAST))
    xp.log(loss, out=loss)
    xp.negative(loss, out=loss)
    if index.base is None or ignore_index >= 0:
        loss[Label.reshape(loss.shape) == ignore_index] = 0
    return loss, match, xp.empty((*X.shape, 0), dtype=X.dtype)


@op("cross_entropy_grad2")
def cross_entropy_grad2(
    xp: Array, Label: Array, MatchX: Array, XShape: Array, dY: Array, ignore_index: int
) -> Array:
    shape = XShape.shape[:-1]
    index = classes_of(xp, Label, shape[-1], ignore_index)
    share = xp.maximum(MatchX, MatchX.dtype.type(_LEAST))
    xp.divide(dY, share, out=share)
    xp.negative(share, out=share)
    share[Label.reshape(share.shape) == ignore_index] = 0
    dx = xp.zeros(shape, dtype=dY.dtype)
    return put(xp, dx, index, share)


@op("cross_entropy", infer=_classes_rule, grad=GradOp(uses=("X", "Label"), wrt=("X",)))
def cross_entropy(xp: Array, X: Array, Label: Array, soft_label: bool, ignore_index: int) -> Array:
    if soft_label:
        logs = xp.log(xp.maximum(X, X.dtype.type(_LEAST)))
        return -(logs * Label).sum(-1, keepdims=True)
    return cross_entropy2(xp, X, Label, ignore_index)[0]


@op("cross_entropy_grad")
def cross_entropy_grad(
    xp: Array, X: Array, Label: Array, dY: Array, soft_label: bool, ignore_index: int
) -> Array:
    if soft_label:
        return -dY * Label / X
    index = classes_of(xp, Label, X.shape[-1], ignore_index)
    share = -dY.reshape(*X.shape[:-1], 1) / picked(xp, X, index)
    share[Label.reshape(share.shape) == ignore_index] = 0
    dx = xp.zeros(X.shape, dtype=X.dtype)
    return put(xp, dx, index, share)


# -- softmax and cross entropy in one ----------------------------------------------------------
def _softmax_loss_rule(ctx: Infer) -> None:
    x, label = ctx.x("Logits"), ctx.x("Label")
    axis = ctx.attr("axis") % len(x.shape)
    single = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    check_label(ctx, x.shape, label.shape, x.shape if ctx.attr("soft_label") else single)
    ctx.set("Softmax", like=x)
    ctx.set("Loss", single, like=x)


def _kept_dimension(label: Array, x: Array, axis: int) -> Array:
    """Labels fed without their dimension of 1, with it."""
    if label.ndim == x.ndim:
        return label
    at = axis % x.ndim
    return label.reshape(*x.shape[:at], 1, *x.shape[at + 1 :])


@op(
    "softmax_with_cross_entropy",
    infer=_softmax_loss_rule,
    grad=GradOp(uses=("Label", "Softmax"), wrt=("Logits",), of=("Loss",), also=("Softmax",)),
    returns="Loss Softmax",
)
def softmax_with_cross_entropy(
    xp: Array, Logits: Array, Label: Array, soft_label: bool, ignore_index: int, axis: int
) -> tuple[Array, Array]:
    Label = _kept_dimension(Label, Logits, axis)
    logs = Logits - Logits.max(axis=axis, keepdims=True)
    soft = xp.exp(logs)
    total = soft.sum(axis=axis, keepdims=True)
    soft /= total
    loss = xp.log(total, out=total)
    if soft_label:
        logs -= loss
        return -(logs * Label).sum(axis=axis, keepdims=True), soft
    rows = logs if axis in (-1, logs.ndim - 1) else xp.moveaxis(logs, axis, -1)
    labels = Label if rows is logs else xp.moveaxis(Label, axis, -1)
    index = classes_of(xp, labels, rows.shape[-1], ignore_index)
    at_label = picked(xp, rows, index)
    loss -= at_label if rows is logs else xp.moveaxis(at_label, -1, axis)
    loss[Label == ignore_index] = 0
    return loss, soft


@op("softmax_with_cross_entropy_grad", inplace={"Logits@GRAD": "Softmax"})
def softmax_with_cross_entropy_grad(
    xp: Array,
    Label: Array,
    Softmax: Array,
    dLoss: Array,
    dSoftmax: Array,
    soft_label: bool,
    ignore_index: int,
    axis: int,
    out: Array = None,
) -> Array:
    through = None if dSoftmax is None else softmax_grad(xp, Softmax, dSoftmax, axis)
    found = _loss_gradient(xp, Label, Softmax, dLoss, soft_label, ignore_index, axis, out)
    return found if through is None else xp.add(found, through, out=found)


def _loss_gradient(
    xp: Array,
    Label: Array,
    Softmax: Array,
    dLoss: Array,
    soft_label: bool,
    ignore_index: int,
    axis: int,
    out: Array,
) -> Array:
    if soft_label:
        out = xp.subtract(Softmax, Label, out=out)
        out *= dLoss
        return out
    Label = _kept_dimension(Label, Softmax, axis)
    share = xp.where(Label == ignore_index, dLoss.dtype.type(0), dLoss)
    out = xp.multiply(Softmax, share, out=out)
    if axis in (-1, out.ndim - 1):
        index = classes_of(xp, Label, out.shape[-1], ignore_index)
        return put(xp, out, index, picked(xp, out, index) - share)
    labels = xp.moveaxis(Label, axis, -1)
    index = classes_of(xp, labels, out.shape[axis], ignore_index)
    rows = xp.ascontiguousarray(xp.moveaxis(out, axis, -1))
    rows = put(xp, rows, index, picked(xp, rows, index) - xp.moveaxis(share, axis, -1))
    return xp.moveaxis(rows, -1, axis)
