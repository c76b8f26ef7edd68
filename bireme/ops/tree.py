"""Operators of tree-based deep models (arXiv 1801.02294): children of nodes, and samples of every
layer on the way from the root to a leaf; and columns joined or summed.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.random import Key
from bireme.errors import InvalidArgument
from bireme.ir import VarType

from .table import GradOp, Infer, no_gradient, op

# -- partial_concat and partial_sum --------------------------------------------------------------


def _stretch(width: int, start: int, length: int, name: str) -> tuple[int, int]:
    start = start + width if start < 0 else start
    end = width if length < 0 else start + length
    if not 0 <= start < end <= width:
        raise InvalidArgument(f"{name}: columns {start} to {end} of {width}")
    return start, end


def _part_rule(ctx: Infer) -> None:
    xs = ctx.inputs("X")
    given = ctx.attr("start_index"), ctx.attr("length"), ctx.op.type
    start, end = _stretch(xs[0].shape[1], *given)
    times = len(xs) if ctx.op.type == "partial_concat" else 1
    ctx.set("Out", (xs[0].shape[0], times * (end - start)), like=xs[0])


@op("partial_concat", infer=_part_rule, grad=GradOp(uses=("X",)))
def partial_concat(xp: Any, X: list[Array], start_index: int, length: int) -> Array:
    """The same columns of every input side by side."""
    a, b = _stretch(X[0].shape[1], start_index, length, "partial_concat")
    return xp.concatenate([x[:, a:b] for x in X], axis=1)


@op("partial_concat_grad")
def partial_concat_grad(
    xp: Any, X: list[Array], dOut: Array, start_index: int, length: int
) -> list[Array]:
    a, b = _stretch(X[0].shape[1], start_index, length, "partial_concat")
    return _spread(xp, X, [dOut[:, i * (b - a) : (i + 1) * (b - a)] for i in range(len(X))], a, b)


def _spread(xp: Any, X: list[Array], slopes: list[Array], a: int, b: int) -> list[Array]:
    found = []
    for x, slope in zip(X, slopes, strict=True):
        dx = xp.zeros(x.shape, x.dtype)
        dx[:, a:b] = slope
        found.append(dx)
    return found


@op("partial_sum", infer=_part_rule, grad=GradOp(uses=("X",)))
def partial_sum(xp: Any, X: list[Array], start_index: int, length: int) -> Array:
    """The sum of the same columns of every input."""
    a, b = _stretch(X[0].shape[1], start_index, length, "partial_sum")
    return sum((x[:, a:b] for x in X[1:]), X[0][:, a:b].copy())


@op("partial_sum_grad")
def partial_sum_grad(
    xp: Any, X: list[Array], dOut: Array, start_index: int, length: int
) -> list[Array]:
    a, b = _stretch(X[0].shape[1], start_index, length, "partial_sum")
    return _spread(xp, X, [dOut] * len(X), a, b)


# -- tdm ---------------------------------------------------------------------------------------
def _child_rule(ctx: Infer) -> None:
    shape = (*ctx.x("X").shape, ctx.attr("child_nums"))
    for slot in ("Child", "LeafMask"):
        ctx.set(slot, shape, VarType(ctx.attr("dtype")))


@op("tdm_child", infer=_child_rule, grad=no_gradient, returns="Child LeafMask")
def tdm_child(
    xp: Any, X: Array, TreeInfo: Array, child_nums: int, out_dtype: str
) -> tuple[Array, Array]:
    """The children of each node, and which of them are leaves. A row of TreeInfo is (item, layer,
    parent, children ...); item 0 is no leaf and node 0 is none.
    """
    children = TreeInfo[X.reshape(-1), 3 : 3 + child_nums]
    children = xp.where(((X.reshape(-1) != 0) & (children[:, 0] != 0))[:, None], children, 0)
    leaves = TreeInfo[children, 0] != 0
    shape = (*X.shape, child_nums)
    return children.astype(out_dtype).reshape(shape), leaves.astype(out_dtype).reshape(shape)


def _sampler_rule(ctx: Infer) -> None:
    own = int(ctx.attr("output_positive"))
    width = sum(n + own for n in ctx.attr("neg_samples_num_list"))
    for slot in ("Out", "Labels", "Mask"):
        ctx.set(slot, (ctx.x("X").shape[0], width, 1), VarType(ctx.attr("dtype")))


@op(
    "tdm_sampler",
    infer=_sampler_rule,
    grad=no_gradient,
    returns="Out Labels Mask",
    stateful=True,
)
def tdm_sampler(
    xp: Any,
    key: Key,
    X: Array,
    Travel: Array,
    Layer: Array,
    output_positive: bool,
    neg_samples_num_list: Any,
    layer_offset_lod: Any,
    out_dtype: str,
) -> tuple[Array, Array, Array]:
    """For every leaf and layer the node on its way, if `output_positive`, and other nodes of that
    layer, each once; 0 with mask 0 where the way has ended.
    """
    ways, nodes = to_host(Travel)[to_host(X).reshape(-1)], to_host(Layer).reshape(-1)
    begin = 0
    columns: list[Array] = []
    labels: list[Array] = []
    masks: list[Array] = []
    for i, count in enumerate(neg_samples_num_list):
        layer = nodes[layer_offset_lod[i] : layer_offset_lod[i + 1]]
        own = ways[:, i]
        if count >= len(layer):
            raise InvalidArgument(
                f"tdm_sampler: {count} negatives of the {len(layer)} nodes of layer {i}"
            )
        rank = key.at(begin).uniform(np, (len(own), len(layer)), 0.0, 1.0, "float64")
        begin += rank.size
        rank[layer[None] == own[:, None]] = 2  # itself comes last
        others = layer[np.argsort(rank, axis=1)[:, :count]]
        chosen = np.concatenate([own[:, None], others], axis=1)[:, 0 if output_positive else 1 :]
        alive = np.broadcast_to((own != 0)[:, None], chosen.shape)
        columns.append(np.where(alive, chosen, 0))
        label = np.zeros(chosen.shape, np.int64)
        label[:, 0] = int(output_positive)
        labels.append(np.where(alive, label, 0))
        masks.append(alive)
    found = (np.concatenate(part, axis=1)[..., None] for part in (columns, labels, masks))
    out, label, mask = (xp.asarray(part.astype(out_dtype)) for part in found)
    return out, label, mask
