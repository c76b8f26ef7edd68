"""Operators that few programs use: negative log-likelihood, circular correlation, similarity focus,
pooling in pyramids and its inverse, attention by rank.
"""

import math
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument

from .pooling import pool, pool_grad
from .shapes import same_as
from .table import GradOp, Infer, no_gradient, op


# -- negative log-likelihood -------------------------------------------------------------------
def _loss_rule(ctx: Infer) -> None:
    x, label = ctx.x("X"), ctx.x("Label")
    ctx.set("Out", label.shape if ctx.attr("reduction") == "none" else (1,), like=x, lod_level=0)
    ctx.set("Total_weight", (1,), x.dtype, lod_level=0)


def _label_weights(xp: Array, x: Array, label: Array, weight: Array, ignored: int) -> Array:
    """What each label weighs; nothing if it is ignored."""
    counts = label != ignored
    if weight is None:
        return counts.astype(x.dtype)
    return xp.where(counts, weight[xp.where(counts, label, 0)], 0).astype(x.dtype)


def _at_labels(xp: Array, label: Array, ignored: int) -> Array:
    return xp.expand_dims(xp.where(label == ignored, 0, label), 1)


@op(
    "nll_loss",
    infer=_loss_rule,
    grad=GradOp(uses=("X", "Label", "Weight", "Total_weight"), wrt=("X",), of=("Out",)),
    returns="Out Total_weight",
    lod=None,
)
def nll_loss(
    xp: Array, X: Array, Label: Array, Weight: Array, ignore_index: int, reduction: str
) -> tuple[Array, Array]:
    """Minus the log probability of each label, weighted; [N, C] or [N, C, H, W]."""
    weights = _label_weights(xp, X, Label, Weight, ignore_index)
    picked = xp.take_along_axis(X, _at_labels(xp, Label, ignore_index), axis=1)[:, 0]
    losses, total = -picked * weights, weights.sum().reshape(1)
    if reduction == "none":
        return losses, total
    whole = losses.sum().reshape(1)
    return (whole / total if reduction == "mean" else whole), total


@op("nll_loss_grad")
def nll_loss_grad(
    xp: Array,
    X: Array,
    Label: Array,
    Weight: Array,
    Total_weight: Array,
    dOut: Array,
    ignore_index: int,
    reduction: str,
) -> Array:
    weights = _label_weights(xp, X, Label, Weight, ignore_index)
    flowing = -dOut * weights
    flowing = flowing / Total_weight if reduction == "mean" else flowing
    grad = xp.zeros_like(X)
    at = _at_labels(xp, Label, ignore_index)
    xp.put_along_axis(grad, at, xp.expand_dims(flowing, 1), axis=1)
    return grad


# -- circular correlation ----------------------------------------------------------------------
def _shift_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if y.shape[1] >= 0 and (y.shape[1] % 2 == 0 or 0 <= x.shape[1] < y.shape[1]):
        raise InvalidArgument(
            f"conv_shift: Y {list(y.shape)} must have an odd width, at most that of X "
            f"{list(x.shape)}"
        )
    ctx.set("Out", like=x)


def _shifted(xp: Array, x: Array, k: int, width: int) -> Array:
    """Column j + k - width // 2 in the place of column j."""
    return xp.roll(x, width // 2 - k, axis=1)


@op("conv_shift", infer=_shift_rule, grad=GradOp(uses=("X", "Y"), wrt=("X", "Y")))
def conv_shift(xp: Array, X: Array, Y: Array) -> Array:
    """Each row of X correlated with its row of Y, around the end."""
    width = Y.shape[1]
    out = xp.zeros_like(X)
    for k in range(width):
        out += _shifted(xp, X, k, width) * Y[:, k : k + 1]
    return out


@op("conv_shift_grad")
def conv_shift_grad(xp: Array, X: Array, Y: Array, dOut: Array) -> tuple[Array, Array]:
    width = Y.shape[1]
    dx, dy = xp.zeros_like(X), xp.empty_like(Y)
    for k in range(width):
        dx += xp.roll(dOut * Y[:, k : k + 1], k - width // 2, axis=1)
        dy[:, k] = (_shifted(xp, X, k, width) * dOut).sum(axis=1)
    return dx, dy


# -- similarity focus --------------------------------------------------------------------------
@op("similarity_focus", infer=same_as("X"), grad=no_gradient)
def similarity_focus(xp: Array, X: Array, axis: int, indexes: Any) -> Array:
    """Ones where a plane at one of `indexes` has a maximum of its row and column, each row and
    column taken once, the greatest first; arXiv 1709.04250.
    """
    x = np.moveaxis(to_host(X), axis, 1)
    mask = np.zeros((len(x), *x.shape[2:]), dtype=bool)
    for sample, chosen in zip(x, mask, strict=True):
        for index in indexes:
            _take_maxima(sample[index], chosen)
    out = np.broadcast_to(mask[:, None], x.shape).astype(x.dtype)
    return xp.asarray(np.moveaxis(out, 1, axis))


def _take_maxima(plane: Array, chosen: Array) -> None:
    rows, columns = np.ones(plane.shape[0], bool), np.ones(plane.shape[1], bool)
    for place in np.argsort(-plane, axis=None, kind="stable"):
        i, j = divmod(int(place), plane.shape[1])
        if rows[i] and columns[j]:
            rows[i] = columns[j] = False
            chosen[i, j] = True


# -- pyramids ----------------------------------------------------------------------------------
def _pyramid_rule(ctx: Infer) -> None:
    x, levels = ctx.x("X"), ctx.attr("pyramid_height")
    ctx.set("Out", (x.shape[0], x.shape[1] * (4**levels - 1) // 3), like=x)


def _windows(spatial: Any, level: int, kind: str) -> tuple[Any, ...]:
    """The pooling of a level: 2^level windows along each axis."""
    bins = 2**level
    kernel = [math.ceil(n / bins) for n in spatial]
    pads = [(k * bins - n + 1) // 2 for k, n in zip(kernel, spatial, strict=True)]
    return kernel, kernel, pads, kind, True, False, False, False, "EXPLICIT", "NCHW"


@op("spp", infer=_pyramid_rule, grad=GradOp(uses=("X", "Out")))
def spp(xp: Array, X: Array, pyramid_height: int, pooling_type: str) -> Array:
    """Spatial pyramid pooling, arXiv 1406.4729: a row per image, whatever its size."""
    levels = (
        pool(xp, X, *_windows(X.shape[2:], level, pooling_type)) for level in range(pyramid_height)
    )
    return xp.concatenate([level.reshape(len(X), -1) for level in levels], axis=1)


@op("spp_grad")
def spp_grad(
    xp: Array, X: Array, Out: Array, dOut: Array, pyramid_height: int, pooling_type: str
) -> Array:
    grad, start = xp.zeros_like(X), 0
    for level in range(pyramid_height):
        shape = (*X.shape[:2], 2**level, 2**level)
        part = slice(start, start + math.prod(shape[1:]))
        y, dy = Out[:, part].reshape(shape), dOut[:, part].reshape(shape)
        grad += pool_grad(xp, X, y, dy, *_windows(X.shape[2:], level, pooling_type))
        start = part.stop
    return grad


def _unpooled_sizes(spatial: Any, ksize: Any, strides: Any, paddings: Any) -> list[int]:
    axes = zip(spatial, ksize, strides, paddings, strict=True)
    return [-1 if n < 0 else (n - 1) * s - 2 * p + k for n, k, s, p in axes]


def _unpool_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    sizes = _unpooled_sizes(x.shape[2:], *(ctx.attr(n) for n in ("ksize", "strides", "paddings")))
    ctx.set("Out", (*x.shape[:2], *sizes), like=x)


@op("unpool", infer=_unpool_rule, grad=GradOp(uses=("X", "Indices"), wrt=("X",)))
def unpool(xp: Array, X: Array, Indices: Array, ksize: Any, strides: Any, paddings: Any) -> Array:
    """Each maximum back in its place of the flattened plane, zeros elsewhere."""
    sizes = _unpooled_sizes(X.shape[2:], ksize, strides, paddings)
    out = xp.zeros((*X.shape[:2], math.prod(sizes)), dtype=X.dtype)
    places = Indices.reshape(*X.shape[:2], -1)
    if places.size and int(places.max()) >= out.shape[2]:
        raise InvalidArgument(
            f"unpool: index {int(places.max())} is not in a plane of {sizes[0]} x {sizes[1]}"
        )
    xp.put_along_axis(out, places, X.reshape(places.shape), axis=2)
    return out.reshape(*X.shape[:2], *sizes)


@op("unpool_grad")
def unpool_grad(xp: Array, X: Array, Indices: Array, dOut: Array) -> Array:
    places = Indices.reshape(*X.shape[:2], -1)
    flowing = dOut.reshape(*X.shape[:2], -1)
    return xp.take_along_axis(flowing, places, axis=2).reshape(X.shape)


# -- attention by rank -------------------------------------------------------------------------
def _rank_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", (x.shape[0], ctx.x("RankParam").shape[1]), like=x)


def _ranked(xp: Array, offsets: Array, most: int) -> Any:
    """Per neighbour: rows that have one, which row it is, and the block of parameters of the two
    ranks.
    """
    own = offsets[:, 0] - 1
    for k in range(most):
        other, index = offsets[:, 2 * k + 1] - 1, offsets[:, 2 * k + 2]
        rows = xp.nonzero((own >= 0) & (other >= 0))[0]
        yield rows, index[rows], own[rows] * most + other[rows]


@op(
    "rank_attention",
    infer=_rank_rule,
    grad=GradOp(uses=("X", "RankOffset", "RankParam"), wrt=("RankParam",)),
    lod=None,
)
def rank_attention(xp: Array, X: Array, RankOffset: Array, RankParam: Array, MaxRank: int) -> Array:
    """For each row the sum over its neighbours, each times the parameters of the two ranks."""
    blocks = RankParam.reshape(MaxRank * MaxRank, X.shape[1], -1)
    out = xp.zeros((len(X), blocks.shape[2]), dtype=X.dtype)
    for rows, index, block in _ranked(xp, RankOffset, MaxRank):
        out[rows] += xp.einsum("nd,ndp->np", X[index], blocks[block])
    return out


@op("rank_attention_grad")
def rank_attention_grad(
    xp: Array, X: Array, RankOffset: Array, RankParam: Array, dOut: Array, MaxRank: int
) -> Array:
    grad = xp.zeros((MaxRank * MaxRank, X.shape[1], RankParam.shape[1]), dtype=X.dtype)
    for rows, index, block in _ranked(xp, RankOffset, MaxRank):
        xp.add.at(grad, block, X[index][:, :, None] * dOut[rows][:, None])
    return grad.reshape(RankParam.shape)
