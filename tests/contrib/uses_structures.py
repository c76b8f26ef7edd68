"""Pairs of texts, trees, instances with tags and fused operators; see `tests/detection/uses.py`.
Gradients shown: match_matrix_tensor_grad, var_conv_2d_grad, sequence_topk_avg_pooling_grad,
filter_by_instag_grad, fused_elemwise_activation_grad, and those of the filters of tree_conv_grad.
"""

import numpy as np

from tests.contrib.uses_quantization import append
from tests.detection.uses import data, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def use(function):
    USES[function.__name__] = function
    return function


def _texts(f, feed):
    x = data(f, feed, "x", maps("x", 16, 24), [[5, 4, 7]])
    y = data(f, feed, "y", maps("y", 18, 24), [[6, 9, 3]])
    return x, y, f.contrib.layers.match_matrix_tensor(x, y, 3)[0]


@use
def match_matrix_tensor(f):
    feed = feeds()
    x, y, out = _texts(f, feed)
    return [out], feed, [out, x, y, *f.default_main_program().all_parameters()]


@use
def var_conv_2d(f):
    feed = feeds()
    x, y, image = _texts(f, feed)
    out = f.contrib.layers.var_conv_2d(image, x, y, 3, 4, [5, 3])
    more = f.contrib.layers.var_conv_2d(image, x, y, 3, 2, [2, 3], [2, 3])
    both = f.layers.concat([f.layers.reshape(o, [-1]) for o in (out, more)])
    return [out, more], feed, [both, image, *f.default_main_program().all_parameters()[1:]]


@use
def sequence_topk_avg_pooling(f):
    feed = feeds()
    x, y, image = _texts(f, feed)
    out = f.contrib.layers.sequence_topk_avg_pooling(image, x, y, [1, 3, 5], 3)
    return [out], feed, [out, image]


@use
def tree_conv(f):
    feed = feeds()
    nodes = data(f, feed, "n", maps("n", 2, 17, 12))
    parents = [[(i // 3) + 1 for i in range(16)], [max(i - 2, 0) // 2 + 1 for i in range(16)]]
    edges = np.zeros((2, 16, 2), "int32")
    for tree, own in zip(edges, parents):  # noqa: B905
        tree[: len(own)] = [[p, i + 2] for i, p in enumerate(own)]
    edges = data(f, feed, "e", edges)
    out = [
        f.contrib.layers.tree_conv(nodes, edges, 6, 2),
        f.contrib.layers.tree_conv(nodes, edges, 6, 1, 4, None, bias_attr=False),
    ]
    both = f.layers.concat([f.layers.reshape(o, [-1]) for o in out])
    return out, feed, [both, *f.default_main_program().all_parameters()]


def _tagged(f, tags, wanted, is_lod):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 12, 8), [[3, 1, 4, 2, 2]] if is_lod else None)
    lengths = [[2, 1, 1, 2, 1]] if is_lod else [[1] * 12]
    tag = data(f, feed, "t", np.array(tags, "int64").reshape(-1, 1), lengths)
    wanted = data(f, feed, "w", np.array(wanted, "int64"))
    out = f.layers.filter_by_instag(x, tag, wanted, is_lod)
    return list(out), feed, [out[0], x]


@use
def sequences_with_tags(f):
    return _tagged(f, [0, 1, 2, 1, 3, 2, 1], [1, 7], True)


@use
def rows_with_tags(f):
    return _tagged(f, [0, 1, 2] * 4, [2, 0], False)


@use
def rows_without_a_tag(f):
    return _tagged(f, [0, 1, 2] * 4, [9], False)


@use
def fused(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 8, 12, 5))
    y = data(f, feed, "y", maps("y", 12))
    whole = data(f, feed, "z", maps("z", 8, 12, 5))
    fused = f.contrib.layers.fused_elemwise_activation
    out = [
        fused(x, y, ["relu", "elementwise_add"], 1),
        fused(x, y, ["elementwise_mul", "tanh"], 1),
        fused(x, whole, "elementwise_add,scale", scale=0.5),
        fused(x, whole, ["scale", "elementwise_add"], scale=1.5),
        fused(x, whole, ["elementwise_mul", "sigmoid"]),
    ]
    both = f.layers.concat([f.layers.reshape(o, [-1]) for o in out])
    return out, feed, [both, x, y, whole]


@use
def fully_connected(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 8, 4, 6))
    w, b = data(f, feed, "w", maps("w", 24, 10)), data(f, feed, "b", maps("b", 10))
    given = {"Input": x, "W": w, "Bias": b}
    out = append(f, "fc", given, "Out", in_num_col_dims=1, activation_type="relu")
    return out + append(f, "fc", {"Input": x, "W": w}, "Out", in_num_col_dims=1), feed, []
