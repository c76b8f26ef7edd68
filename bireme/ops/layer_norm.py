"""layer_norm, after Ba, Kiros and Hinton, arXiv 1607.06450: rows, block by block in the cache.

Sums over a row, and over the rows of a block, are products with vectors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.arrays import thread_pool as lanes
from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .shapes import product
from .table import GradOp, Infer, op

_BLOCK = 1 << 16  # elements; three float32 arrays of so many stay in a core's cache


def _shape(ctx: Infer) -> None:
    x = ctx.x()
    axis = ctx.attr("begin_norm_axis")
    if not 0 < axis < len(x.shape):
        raise InvalidArgument(f"begin_norm_axis {axis} is outside of shape {list(x.shape)}")
    ctx.set("Y", like=x)
    for slot in ("Mean", "Variance"):
        ctx.set(slot, (product(x.shape[:axis]),), x.dtype, lod_level=0)


def folded(x: Array, axis: int) -> Array:
    """x as rows that are normalised."""
    rows = 1
    for n in x.shape[:axis]:
        rows *= n
    return x.reshape(rows, -1)


def blocks_of(xp: Any, rows: Array) -> list[slice]:
    """Blocks of rows; they follow from the shape alone."""
    return lanes.cut(len(rows), -(-rows.size // _BLOCK) if xp is np else 1)


def each(xp: Any, work: Callable[[int], None], blocks: int, cost: int) -> None:
    """Call `work` with the number of each block, in lanes."""

    def some(part: slice) -> None:
        for i in range(part.start, part.stop):
            work(i)

    lanes.spread(xp, some, blocks, cost)


@op(
    "layer_norm",
    infer=_shape,
    grad=GradOp(
        uses=("X", "Scale", "Bias", "Mean", "Variance"), wrt=("X", "Scale", "Bias"), of=("Y",)
    ),
    returns="Y Mean Variance",
    compiled="layer_norm",
)
def layer_norm(
    xp: Any, X: Array, Scale: Array, Bias: Array, begin_norm_axis: int, epsilon: float
) -> tuple[Array, Array, Array]:
    rows = folded(X, begin_norm_axis)
    kind, size = rows.dtype.type, max(rows.shape[1], 1)
    y = xp.empty_like(rows)
    mean, variance = (xp.empty(len(rows), dtype=rows.dtype) for _ in range(2))
    blocks = blocks_of(xp, rows)

    def work(i: int) -> None:
        x, out, some = rows[blocks[i]], y[blocks[i]], blocks[i]
        mean[some] = x.mean(axis=1, dtype=rows.dtype)
        xp.subtract(x, mean[some, None], out=out)
        variance[some] = xp.einsum("rc,rc->r", out, out) / kind(size)
        out *= 1 / xp.sqrt(variance[some, None] + kind(epsilon))
        if Scale is not None:
            out *= Scale.reshape(-1)
        if Bias is not None:
            out += Bias.reshape(-1)

    each(xp, work, len(blocks), 3 * rows.size)
    return y.reshape(X.shape), mean, variance


@op("layer_norm_grad", returns="X@GRAD Scale@GRAD Bias@GRAD", compiled="layer_norm")
def layer_norm_grad(
    xp: Any,
    X: Array,
    Scale: Array,
    Bias: Array,
    Mean: Array,
    Variance: Array,
    dY: Array,
    begin_norm_axis: int,
    epsilon: float,
) -> tuple[Array, Array, Array]:
    """With n the normalised row and g = dY Scale: dX = (g - mean(g) - n mean(g n)) / std."""
    rows, dy = folded(X, begin_norm_axis), folded(dY, begin_norm_axis)
    kind, size = rows.dtype.type, max(rows.shape[1], 1)
    inverse = 1 / xp.sqrt(Variance.reshape(-1, 1) + kind(epsilon))
    mean, dx = Mean.reshape(-1, 1), xp.empty_like(rows)
    gain = xp.ones(rows.shape[1], dtype=rows.dtype) if Scale is None else Scale.reshape(-1)
    share = gain / kind(size)
    blocks = blocks_of(xp, rows)
    scales, biases = (xp.empty((len(blocks), rows.shape[1]), dtype=rows.dtype) for _ in range(2))
    ones = xp.ones(max(b.stop - b.start for b in blocks), dtype=rows.dtype)

    def work(i: int) -> None:
        some, one = blocks[i], ones[: blocks[i].stop - blocks[i].start]
        g, out = dy[some], dx[some]
        normal = rows[some] - mean[some]
        normal *= inverse[some]
        xp.multiply(g, normal, out=out)
        scales[i], biases[i] = xp.dot(one, out), xp.dot(one, g)
        normal *= xp.dot(out, share)[:, None]
        if Scale is not None:
            xp.multiply(g, gain, out=out)
            out -= normal
        else:
            xp.subtract(g, normal, out=out)
        out -= xp.dot(g, share)[:, None]
        out *= inverse[some]

    each(xp, work, len(blocks), 4 * rows.size)
    return dx.reshape(X.shape), summed(scales, Scale), summed(biases, Bias)


def summed(parts: Array, like: Array) -> Array:
    """The gradient of a vector from its part of each block; None where there is no vector."""
    return None if like is None else parts.sum(axis=0).reshape(like.shape)
