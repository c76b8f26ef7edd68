"""Convolution over trees (arXiv 1409.5718): every node with its descendants of some depths,
weighted by where they stand.
"""

from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.errors import InvalidArgument

from .table import GradOp, Infer, op


def _rule(ctx: Infer) -> None:
    nodes, weight = ctx.x("NodesVector"), ctx.x("Filter")
    if len(weight.shape) != 4 or weight.shape[1] != 3 or weight.shape[0] != nodes.shape[2]:
        raise InvalidArgument(
            f"tree_conv: nodes {list(nodes.shape)}, filter {list(weight.shape)}",
            hint=f"the filter is [{nodes.shape[2]}, 3, outputs, filters]",
        )
    ctx.set("Out", (*nodes.shape[:2], *weight.shape[2:]), like=nodes)


def _children(edges: Array) -> dict[int, list[int]]:
    """The children of each node, from edges (parent, child) of nodes from 1; the list ends at the
    first edge with a zero.
    """
    found: dict[int, list[int]] = {}
    for parent, child in edges.tolist():
        if not (parent and child):
            break
        found.setdefault(parent, []).append(child)
    return found


def _shares(edges: Array, count: int, depth: int) -> Array:
    """How much of each node every patch takes as (left, right, top) [nodes, 3, nodes]."""
    children = _children(edges)
    known = set(children) | {c for own in children.values() for c in own}
    shares = np.zeros((count, 3, count))
    for root in range(1, len(known) + 1):
        stack = [(root, 0, 0.5)]
        while stack:
            node, level, place = stack.pop()
            top = (depth - level) / depth
            left = (1 - top) * place
            shares[root - 1, :, node - 1] += (left, (1 - top) * (1 - left), top)
            own = children.get(node, []) if level + 1 < depth else []
            steps = max(len(own) - 1, 1)
            stack += [
                (child, level + 1, 0.5 if len(own) == 1 else i / steps)
                for i, child in enumerate(own)
            ]
    return shares


def _all_shares(xp: Any, nodes: Array, edges: Array, depth: int) -> Array:
    parts = [_shares(tree, nodes.shape[1], depth) for tree in to_host(edges)]
    return xp.asarray(np.stack(parts), dtype=nodes.dtype)


_GRAD = GradOp(uses=("NodesVector", "EdgeSet", "Filter"), wrt=("NodesVector", "Filter"))


@op("tree_conv", infer=_rule, grad=_GRAD)
def tree_conv(xp: Any, NodesVector: Array, EdgeSet: Array, Filter: Array, max_depth: int) -> Array:
    """The patch of every node [N, nodes, outputs, filters]."""
    shares = _all_shares(xp, NodesVector, EdgeSet, max_depth)
    return xp.einsum("bikn,bnf,fkoc->bioc", shares, NodesVector, Filter, optimize=True)


@op("tree_conv_grad")
def tree_conv_grad(
    xp: Any, NodesVector: Array, EdgeSet: Array, Filter: Array, dOut: Array, max_depth: int
) -> tuple[Array, Array]:
    shares = _all_shares(xp, NodesVector, EdgeSet, max_depth)
    nodes = xp.einsum("bikn,bioc,fkoc->bnf", shares, dOut, Filter, optimize=True)
    weight = xp.einsum("bikn,bnf,bioc->fkoc", shares, NodesVector, dOut, optimize=True)
    return nodes, weight
