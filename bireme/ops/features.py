"""Operators on features of click-through and vision models: cvm, position encoding, flow
matrices, centers.
"""

from itertools import pairwise

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .table import GradOp, Infer, op

Pair = tuple[Array, Array]


# -- cvm: show and click in front of a feature --------------------------------------------------
def _cvm_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    width = x.shape[1] if ctx.attr("use_cvm") else x.shape[1] - 2
    ctx.set("Y", (x.shape[0], width), like=x)


@op("cvm", infer=_cvm_rule, grad=GradOp(uses=("X", "CVM"), wrt=("X",)), lod="X")
def cvm(xp: Array, X: Array, use_cvm: bool) -> Array:
    if not use_cvm:
        return X[:, 2:].copy()
    out = X.copy()
    out[:, 0] = xp.log(X[:, 0] + 1)
    out[:, 1] = xp.log((X[:, 1] + 1).astype("float64")) - out[:, 0]
    return out


@op("cvm_grad")
def cvm_grad(xp: Array, X: Array, CVM: Array, dY: Array, use_cvm: bool) -> Array:
    """The first two columns get show and click themselves: no gradient in the usual sense."""
    dx = xp.empty(X.shape, dtype=X.dtype)
    dx[:, :2] = CVM
    dx[:, 2:] = dY[:, 2:] if use_cvm else dY
    return dx


# -- position encoding -------------------------------------------------------------------------
def _position_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    if x.shape[-1] % 2:
        raise InvalidArgument(f"add_position_encoding: {list(x.shape)} has an odd last dimension")
    ctx.set("Out", like=x)


@op("add_position_encoding", infer=_position_rule, grad=GradOp(wrt=("X",)))
def add_position_encoding(
    xp: Array, X: Array, X_lod: tuple[Array, ...], alpha: float, beta: float
) -> Array:
    if X_lod:
        starts = X_lod[0]
        lengths = [int(b - a) for a, b in pairwise(starts)]
        place = xp.concatenate([xp.arange(n) for n in lengths])
    else:
        place = xp.arange(X.shape[-2])
    half = X.shape[-1] // 2
    power = xp.arange(half) / xp.float64(half - 1) if half > 1 else xp.zeros(1)
    angle = place[:, None] / 10000**power if half > 1 else place[:, None] / xp.float64(10000)
    wave = xp.concatenate([xp.sin(angle), xp.cos(angle)], axis=1).astype(X.dtype)
    return X * X.dtype.type(alpha) + wave * X.dtype.type(beta)


@op("add_position_encoding_grad")
def add_position_encoding_grad(xp: Array, dOut: Array, alpha: float) -> Array:
    return dOut * dOut.dtype.type(alpha)


# -- fsp: how two stacks of maps flow together --------------------------------------------------
def _flow_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if len(x.shape) != 4 or x.shape[2:] != y.shape[2:]:
        raise InvalidArgument(f"fsp: maps {list(x.shape)} and {list(y.shape)} differ in size")
    ctx.set("Out", (x.shape[0], x.shape[1], y.shape[1]), like=x)


def _maps(a: Array) -> Array:
    return a.reshape(a.shape[0], a.shape[1], -1)


@op("fsp", infer=_flow_rule, grad=GradOp(uses=("X", "Y")))
def fsp(xp: Array, X: Array, Y: Array) -> Array:
    x, y = _maps(X), _maps(Y)
    return xp.matmul(x, y.swapaxes(1, 2)) / X.dtype.type(x.shape[2])


@op("fsp_grad")
def fsp_grad(xp: Array, X: Array, Y: Array, dOut: Array, need: frozenset[str]) -> Pair:
    x, y = _maps(X), _maps(Y)
    share = dOut / X.dtype.type(x.shape[2])
    dx = xp.matmul(share, y).reshape(X.shape) if "X@GRAD" in need else None
    return dx, xp.matmul(share.swapaxes(1, 2), x).reshape(Y.shape) if "Y@GRAD" in need else None


# -- center loss -------------------------------------------------------------------------------
def _center_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("SampleCenterDiff", like=x)
    ctx.set("Loss", (x.shape[0], 1), like=x)
    ctx.set("CentersOut", like=ctx.x("Centers"))


@op(
    "center_loss",
    infer=_center_rule,
    grad=GradOp(uses=("X", "SampleCenterDiff"), wrt=("X",), of=("Loss",)),
    returns="Loss SampleCenterDiff CentersOut",
)
def center_loss(
    xp: Array,
    X: Array,
    Label: Array,
    Centers: Array,
    CenterUpdateRate: Array,
    cluster_num: int,
    need_update: bool,
) -> tuple[Array, Array, Array]:
    """Half the squared distance to the label's center; centers move towards their samples."""
    label = Label.reshape(-1)
    diff = X - Centers[label]
    loss = (diff * diff).sum(1, keepdims=True) * X.dtype.type(0.5)
    if not need_update:
        return loss, diff, Centers
    total = xp.zeros(Centers.shape, dtype=X.dtype)
    xp.add.at(total, label, diff)
    count = xp.bincount(label, minlength=cluster_num)[:, None] + 1
    return loss, diff, Centers + CenterUpdateRate.reshape(()) * total / count.astype(X.dtype)


@op("center_loss_grad")
def center_loss_grad(xp: Array, SampleCenterDiff: Array, dLoss: Array) -> Array:
    return SampleCenterDiff * dLoss.reshape(-1, 1)
