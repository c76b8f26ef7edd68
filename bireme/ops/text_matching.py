"""Matching two texts: the matrix of their words' products, convolution and pooling over matrices of
different sizes, and what belongs to some tags.

A matrix of its own size for each pair of sequences lies flat in [elements, 1], with the LoD of the
pairs; its height and width are the lengths of two other sequences.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import WithLoD
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .correlation import convolve, filter_gradient, input_gradient
from .segments import from_lengths, lod_of, offsets_of, ranges
from .table import GradOp, Infer, op
from .windows import Geometry


# -- match_matrix_tensor -------------------------------------------------------------------------
def _match_rule(ctx: Infer) -> None:
    x, y, w = ctx.x("X"), ctx.x("Y"), ctx.x("W")
    if w.shape[1] != ctx.attr("dim_t") or (w.shape[0], w.shape[2]) != (x.shape[1], y.shape[1]):
        raise InvalidArgument(
            f"words of {x.shape[1]} and {y.shape[1]} numbers with W {list(w.shape)}",
            hint=f"W is [{x.shape[1]}, channels, {y.shape[1]}]",
        )
    ctx.set("Out", (-1, 1), like=x, lod_level=1)
    ctx.set("Tmp", (x.shape[0], w.shape[1] * w.shape[2]), x.dtype, lod_level=0)


def _pairs(*lods: Any) -> Iterator[list[slice]]:
    parts = [pairwise(offsets_of(lod, "match_matrix_tensor")) for lod in lods]
    for ends in zip(*parts, strict=True):
        yield [slice(int(a), int(b)) for a, b in ends]


@op(
    "match_matrix_tensor",
    infer=_match_rule,
    grad=GradOp(uses=("X", "Y", "W"), wrt=("X", "Y", "W"), of=("Out",)),
    returns="Out Tmp",
    lod=None,
)
def match_matrix_tensor(
    xp: Any, X: Array, X_lod: Any, Y: Array, Y_lod: Any, W: Array
) -> tuple[WithLoD, Array]:
    """x W y of every word x of a text with every word y of its partner, channel by channel."""
    turned = xp.tensordot(X, W, 1)  # [words of X, channels, width of Y]
    parts = [
        xp.matmul(turned[a].swapaxes(0, 1), Y[b].T).reshape(-1, 1) for a, b in _pairs(X_lod, Y_lod)
    ]
    offsets = from_lengths(np.array([len(part) for part in parts]))
    return WithLoD(xp.concatenate(parts), (offsets,)), turned.reshape(len(X), -1)


@op("match_matrix_tensor_grad", lod=lambda lods, values, attrs: {
    "X@GRAD": lods.get("X", ()), "Y@GRAD": lods.get("Y", ())})  # fmt: skip
def match_matrix_tensor_grad(
    xp: Any, X: Array, X_lod: Any, Y: Array, Y_lod: Any, W: Array, dOut: Array
) -> tuple[Array, Array, Array]:
    turned = xp.tensordot(X, W, 1)
    of_turned, of_y = xp.zeros_like(turned), xp.zeros_like(Y)
    start = 0
    for a, b in _pairs(X_lod, Y_lod):
        shape = W.shape[1], a.stop - a.start, b.stop - b.start
        flowing = dOut[start : start + int(np.prod(shape))].reshape(shape)
        of_turned[a] = xp.matmul(flowing, Y[b]).swapaxes(0, 1)
        of_y[b] = xp.matmul(flowing.swapaxes(1, 2), turned[a].swapaxes(0, 1)).sum(axis=0)
        start += flowing.size
    flat = of_turned.reshape(len(X), -1)
    of_x = xp.matmul(flat, W.reshape(len(W), -1).T)
    return of_x, of_y, xp.matmul(X.T, flat).reshape(W.shape)


# -- var_conv_2d ---------------------------------------------------------------------------------
def _images(x: Array, rows: Any, columns: Any, channels: int) -> Iterator[Array]:
    """Each image [channels, height, width]."""
    heights, widths = (np.diff(offsets_of(lod, "a map of sequences")) for lod in (rows, columns))
    start = 0
    for height, width in zip(heights.tolist(), widths.tolist(), strict=True):
        size = channels * height * width
        yield x[start : start + size].reshape(channels, height, width)
        start += size


def _conv_rule(ctx: Infer) -> None:
    x, w = ctx.x("X"), ctx.x("W")
    taps = ctx.attr("InputChannel") * ctx.attr("KernelH") * ctx.attr("KernelW")
    if tuple(w.shape) != (ctx.attr("OutputChannel"), taps):
        raise InvalidArgument(
            f"var_conv_2d: W {list(w.shape)}", hint=f"give [{ctx.attr('OutputChannel')}, {taps}]"
        )
    ctx.set("Out", (-1, 1), like=x, lod_level=1)
    ctx.set("Col", (-1, 1), x.dtype, lod_level=0)


def _around(shape: Any, kernel: tuple[int, int], strides: tuple[int, int]) -> Geometry:
    """Windows around every pixel, or every so manieth."""
    out = [(n - 1) // s + 1 for n, s in zip(shape, strides, strict=True)]
    before = [k // 2 for k in kernel]
    pads = tuple(
        (lo, max((m - 1) * s + k - n - lo, 0))
        for lo, m, s, k, n in zip(before, out, strides, kernel, shape, strict=True)
    )
    return Geometry(kernel, strides, pads, (1, 1))


_CONV = GradOp(uses=("X", "W", "ROW", "COLUMN"), wrt=("X", "W"), of=("Out",))


@op("var_conv_2d", infer=_conv_rule, grad=_CONV, returns="Out Col", lod=None)
def var_conv_2d(
    xp: Any,
    X: Array,
    W: Array,
    ROW: Array,
    ROW_lod: Any,
    COLUMN: Array,
    COLUMN_lod: Any,
    InputChannel: int,
    KernelH: int,
    KernelW: int,
    StrideH: int,
    StrideW: int,
) -> tuple[WithLoD, Array]:
    """A convolution over matrices of different sizes."""
    kernel, strides = (KernelH, KernelW), (StrideH, StrideW)
    weight = W.reshape(len(W), InputChannel, *kernel)
    parts = []
    for image in _images(X, ROW_lod, COLUMN_lod, InputChannel):
        part = image[:0]
        if image.size:
            geo = _around(image.shape[1:], kernel, strides)
            part = convolve(xp, image[None], weight, geo, 1)
        parts.append(part.reshape(-1, 1))
    offsets = from_lengths(np.array([len(part) for part in parts]))
    return WithLoD(xp.concatenate(parts), (offsets,)), xp.zeros((1, 1), X.dtype)


@op("var_conv_2d_grad", lod=lod_of("X@GRAD", "X"))
def var_conv_2d_grad(
    xp: Any,
    X: Array,
    W: Array,
    ROW: Array,
    ROW_lod: Any,
    COLUMN: Array,
    COLUMN_lod: Any,
    dOut: Array,
    InputChannel: int,
    KernelH: int,
    KernelW: int,
    StrideH: int,
    StrideW: int,
) -> tuple[Array, Array]:
    kernel, strides = (KernelH, KernelW), (StrideH, StrideW)
    weight = W.reshape(len(W), InputChannel, *kernel)
    of_weight, parts, start = xp.zeros_like(weight), [], 0
    for image in _images(X, ROW_lod, COLUMN_lod, InputChannel):
        part = image[None]
        if image.size:
            geo = _around(image.shape[1:], kernel, strides)
            shape = (1, len(W), *geo.out(image.shape[1:]))
            dy = dOut[start : start + int(np.prod(shape))].reshape(shape)
            of_weight += filter_gradient(xp, part, dy, geo, 1, weight.shape)
            part = input_gradient(xp, dy, weight, geo, 1, part.shape)
            start += dy.size
        parts.append(part.reshape(-1, 1))
    return xp.concatenate(parts), of_weight.reshape(W.shape)


# -- sequence_topk_avg_pooling -------------------------------------------------------------------
def _topk_rule(ctx: Infer) -> None:
    wide = ctx.attr("channel_num") * len(ctx.attr("topks"))
    ctx.set("Out", (ctx.x("ROW").shape[0], wide), like=ctx.x("X"), lod_level=1)


_TOPK = GradOp(uses=("X", "ROW", "COLUMN"), wrt=("X",))


@op("sequence_topk_avg_pooling", infer=_topk_rule, grad=_TOPK, lod=lod_of("Out", "ROW"))
def sequence_topk_avg_pooling(
    xp: Any,
    X: Array,
    ROW: Array,
    ROW_lod: Any,
    COLUMN: Array,
    COLUMN_lod: Any,
    topks: Any,
    channel_num: int,
) -> Array:
    """For each row of each matrix the sums of its greatest k elements over k, for every k."""
    parts = []
    for image in _images(X, ROW_lod, COLUMN_lod, channel_num):
        best = -xp.sort(-image, axis=2)
        sums = [best[:, :, :k].sum(axis=2) / X.dtype.type(k) for k in topks]
        parts.append(xp.stack(sums, axis=2).swapaxes(0, 1).reshape(image.shape[1], -1))
    return xp.concatenate(parts)


@op("sequence_topk_avg_pooling_grad", lod=lod_of("X@GRAD", "X"))
def sequence_topk_avg_pooling_grad(
    xp: Any,
    X: Array,
    ROW: Array,
    ROW_lod: Any,
    COLUMN: Array,
    COLUMN_lod: Any,
    dOut: Array,
    topks: Any,
    channel_num: int,
) -> Array:
    parts, start = [], 0
    for image in _images(X, ROW_lod, COLUMN_lod, channel_num):
        rows = dOut[start : start + image.shape[1]].reshape(image.shape[1], channel_num, -1)
        place = xp.argsort(xp.argsort(-image, axis=2, kind="stable"), axis=2, kind="stable")
        flowing = xp.zeros_like(image)
        for j, k in enumerate(topks):
            flowing += (place < k) * (rows[:, :, j].T[:, :, None] / X.dtype.type(k))
        parts.append(flowing.reshape(-1, 1))
        start += image.shape[1]
    return xp.concatenate(parts).reshape(X.shape)


# -- filter_by_instag ----------------------------------------------------------------------------
def _tag_rule(ctx: Infer) -> None:
    rows = ctx.x("Ins")
    ctx.set("Out", (-1, *rows.shape[1:]), like=rows, lod_level=1)
    ctx.set("LossWeight", (-1, 1), VarType.FP32, lod_level=1)
    ctx.set("IndexMap", (-1, 3), VarType.INT64, lod_level=1)


@op(
    "filter_by_instag",
    infer=_tag_rule,
    grad=GradOp(uses=("IndexMap", "LossWeight", "Ins"), wrt=("Ins",), of=("Out",)),
    returns="Out LossWeight IndexMap",
    lod=None,
)
def filter_by_instag(
    xp: Any,
    Ins: Array,
    Ins_lod: Any,
    Ins_tag: Array,
    Ins_tag_lod: Any,
    Filter_tag: Array,
    is_lod: bool,
    out_val_if_empty: int,
) -> tuple[WithLoD, WithLoD, WithLoD]:
    """The instances that have one of the tags, a weight for the loss of each, and (new start, old
    start, length) of each. If none has, one row of `out_val_if_empty` with weight 0.
    """
    tags = offsets_of(Ins_tag_lod, "filter_by_instag")
    hit = np.isin(to_host(Ins_tag).reshape(-1), to_host(Filter_tag))
    kept = [i for i, (a, b) in enumerate(pairwise(tags)) if hit[a:b].any()]
    offsets = offsets_of(Ins_lod, "filter_by_instag") if is_lod else np.arange(len(Ins) + 1)
    starts, lengths = offsets[:-1][kept], np.diff(offsets)[kept]
    whole = from_lengths(lengths)
    if not kept:
        row = xp.full((1, *Ins.shape[1:]), out_val_if_empty, Ins.dtype)
        single = (np.array([0, 1]),)
        index = xp.asarray(np.array([[0, 1, 1]], np.int64))
        weight = xp.zeros((1, 1), "float32")
        return WithLoD(row, single), WithLoD(weight, single), WithLoD(index, single)
    index = np.stack([whole[:-1], starts, lengths], axis=1).astype(np.int64)
    each = (np.arange(len(kept) + 1),)
    rows = Ins[xp.asarray(ranges(starts, lengths))]
    weight = xp.ones((len(kept), 1), "float32")
    return WithLoD(rows, (whole,)), WithLoD(weight, each), WithLoD(xp.asarray(index), each)


@op("filter_by_instag_grad", lod=lod_of("Ins@GRAD", "Ins"))
def filter_by_instag_grad(
    xp: Any, Ins: Array, LossWeight: Array, IndexMap: Array, dOut: Array
) -> Array:
    grad = xp.zeros_like(Ins)
    if float(LossWeight.reshape(-1)[0]) != 0:
        _, starts, lengths = to_host(IndexMap).T
        grad[xp.asarray(ranges(starts, lengths))] = dOut
    return grad
