"""Layers and tools of `fluid.contrib`, against a `fluid` that is either one; see
`tests/detection/uses.py`. The gradients are partial_concat_grad and partial_sum_grad, too.
"""

import numpy as np

from tests.detection.uses import data, draw, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def use(function):
    USES[function.__name__] = function
    return function


def _sequences(f, feed):
    x = data(f, feed, "x", maps("x", 4, 6, 16))
    length = data(f, feed, "n", np.array([6, 3, 1, 4], "int64"))
    start = data(f, feed, "h", maps("h", 4, 4, 16))
    return x, length, start


@use
def lstm_of_two_layers_both_ways(f):
    feed = feeds()
    x, length, start = _sequences(f, feed)
    out = f.contrib.layers.basic_lstm(
        x, start, start, 16, 2, length, bidirectional=True, forget_bias=0.5)  # fmt: skip
    return list(out), feed, [out[0], x, start]


@use
def lstm_of_one_layer(f):
    feed = feeds()
    x, _, _ = _sequences(f, feed)
    out = f.contrib.layers.basic_lstm(x, None, None, 8, batch_first=False)
    return list(out), feed, [out[0], x]


@use
def gru_of_two_layers_both_ways(f):
    feed = feeds()
    x, length, start = _sequences(f, feed)
    out = f.contrib.layers.basic_gru(x, start, 16, 2, length, bidirectional=True)
    return list(out), feed, [out[0], x, start]


@use
def gru_of_one_layer(f):
    feed = feeds()
    x, _, _ = _sequences(f, feed)
    out = f.contrib.layers.basic_gru(x, None, 8)
    return list(out), feed, [out[0], x]


@use
def columns(f):
    feed = feeds()
    x, y = data(f, feed, "x", maps("x", 5, 9)), data(f, feed, "y", maps("y", 5, 9))
    layers = f.contrib.layers
    joined = layers.partial_concat([x, y], 2, 4)
    added = layers.partial_sum([x, y], 3)
    return [joined, added], feed, [f.layers.concat([joined, joined * 2.0, added], 1), x, y]


@use
def children_of_a_tree(f):
    feed = feeds()
    tree = np.array(
        [[0, 0, 0, 1, 2], [0, 1, 0, 3, 4], [0, 1, 0, 5, 0], [7, 2, 1, 0, 0], [8, 2, 1, 0, 0],
         [9, 2, 2, 0, 0]], "int32")  # fmt: skip
    x = data(f, feed, "x", np.array([[0], [1], [2], [3]], "int32"))
    attr = f.ParamAttr(name="tree", initializer=f.initializer.NumpyArrayInitializer(tree))
    return list(f.contrib.layers.tdm_child(x, 6, 2, attr)), feed, []


@use
def sums_of_clicks(f):
    feed = feeds()
    x = data(f, feed, "x", draw("x").uniform(0, 1, (7, 1)).astype("float32"))
    label = data(f, feed, "l", draw("l").randint(0, 2, (7, 1)).astype("float32"))
    return list(f.contrib.layers.ctr_metric_bundle(x, label)), feed, []


@use
def sums_of_embeddings(f):
    feed = feeds()
    ids = data(f, feed, "i", draw("i").randint(0, 30, (9, 1)).astype("int64"), [[2, 3, 4]])
    return [f.contrib.layers.fused_embedding_seq_pool(ids, [30, 8], param_attr="rows")], feed, []


@use
def decay_apart_from_the_gradient(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 5, 9))
    loss = f.layers.mean(f.layers.fc(x, 3))
    kind = f.contrib.extend_optimizer.extend_with_decoupled_weight_decay(f.optimizer.SGD)
    kind(weight_decay=0.1, learning_rate=0.5).minimize(loss)
    block = f.default_main_program().global_block()
    return [loss, block.var("fc_0.w_0"), block.var("fc_0.b_0")], feed, []
