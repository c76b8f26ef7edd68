"""Operators of 1.8.5 that few programs use; see `tests/detection/uses.py`. Gradients shown:
nll_loss_grad, conv_shift_grad, spp_grad, unpool_grad, inplace_abn_grad.
"""

import numpy as np

from tests.contrib.uses_quantization import append
from tests.detection.uses import data, draw, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def use(function):
    USES[function.__name__] = function
    return function


def _flat(f, values):
    return f.layers.concat([f.layers.reshape(v, [-1]) for v in values])


def _loss(f, shape, weighted):
    feed = feeds()
    x = data(f, feed, "x", maps("x", *shape))
    labels = draw("y").randint(0, shape[1], (shape[0], *shape[2:])).astype("int64")
    given = {"X": x, "Label": data(f, feed, "y", labels)}
    if weighted:
        given["Weight"] = data(f, feed, "w", np.abs(maps("w", shape[1])))
    losses, totals = [], []
    for kind in ("none", "mean", "sum"):
        for ignored in (-100, 1):
            attrs = {"reduction": kind, "ignore_index": ignored}
            loss, total = append(f, "nll_loss", given, "Out Total_weight", **attrs)
            losses.append(loss)
            totals += [total] if kind != "none" else []
    return losses + totals, feed, [_flat(f, losses), x]


@use
def nll_loss(f):
    return _loss(f, (6, 4), False)


@use
def nll_loss_with_weights(f):
    return _loss(f, (6, 4), True)


@use
def nll_loss_of_pixels(f):
    return _loss(f, (2, 3, 2, 3), True)


@use
def similarity_focus(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 3, 4, 5))
    out = []
    for axis, indexes in ((1, [0]), (1, [2, 0]), (2, [1]), (3, [0, 4])):
        out += append(f, "similarity_focus", {"X": x}, "Out", axis=axis, indexes=indexes)
    return out, feed, []


@use
def conv_shift(f):
    feed = feeds()
    x, y = data(f, feed, "x", maps("x", 3, 7)), data(f, feed, "y", maps("y", 3, 5))
    out = append(f, "conv_shift", {"X": x, "Y": y}, "Out")
    return out, feed, [out[0], x, y]


@use
def spp(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 3, 9, 6))
    out = [
        append(f, "spp", {"X": x}, "Out", pyramid_height=height, pooling_type=kind)[0]
        for kind in ("max", "avg")
        for height in (1, 3)
    ]
    return out, feed, [_flat(f, out), x]


@use
def unpool(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 3, 6, 4))
    pooled, mask = append(
        f, "max_pool2d_with_index", {"X": x}, "Out Mask", ksize=[2, 2], strides=[2, 2]
    )
    given = {"X": pooled, "Indices": mask}
    attrs = {"ksize": [2, 2], "strides": [2, 2], "unpooling_type": "max", "paddings": [0, 0]}
    out = append(f, "unpool", given, "Out", **attrs)
    return out, feed, [out[0], x]


def _batch(f, feed, weighted):
    chances = draw("p").uniform(0, 1, (9, 1)).astype("float32")
    given = {
        "MaxProbs": data(f, feed, "p", chances),
        "Indices": data(f, feed, "i", draw("i").randint(0, 4, (9, 1)).astype("int32")),
        "Labels": data(f, feed, "l", draw("l").randint(0, 4, (9, 1)).astype("int32")),
    }
    if weighted:
        given["Weights"] = data(f, feed, "w", np.abs(maps("w", 9, 1)))
        given["StatesInfo"] = data(f, feed, "s", np.abs(maps("s", 5, 4)))
    return given


@use
def precision_recall(f):
    feed = feeds()
    slots = "BatchMetrics AccumMetrics AccumStatesInfo"
    out = append(f, "precision_recall", _batch(f, feed, False), slots, class_number=5)
    feed = feeds()
    more = append(f, "precision_recall", _batch(f, feed, True), slots, class_number=5)
    return out + more, feed, []


@use
def positive_negative_pair(f):
    feed = feeds()
    given = {
        "Score": data(f, feed, "s", np.round(maps("s", 12, 3), 0)),
        "Label": data(f, feed, "l", draw("l").randint(0, 3, (12, 1)).astype("float32")),
        "QueryID": data(f, feed, "q", draw("q").randint(0, 3, (12, 1)).astype("int64")),
    }
    slots = "PositivePair NegativePair NeutralPair"
    out = append(f, "positive_negative_pair", given, slots, column=0)
    out += append(f, "positive_negative_pair", given, slots, column=-1)
    for i, name in enumerate(("Positive", "Negative", "Neutral")):
        given[f"Accumulate{name}Pair"] = data(f, feed, name, np.array([1.5 + i], "float32"))
    given["Weight"] = data(f, feed, "w", np.abs(maps("w", 12, 1)))
    return out + append(f, "positive_negative_pair", given, slots, column=1), feed, []


def _abn(f, activation, **attrs):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 4, 3, 2, 5))
    made = [f.layers.create_parameter([3], "float32", name=n) for n in ("scale", "bias")]
    fixed = [data(f, feed, n + "0", np.abs(maps(n, 3)) + 0.5) for n in ("mean", "variance")]
    helper = f.layer_helper.LayerHelper("inplace_abn")
    slots = "SavedMean SavedVariance ReserveSpace"
    outs = {s: helper.create_variable_for_type_inference("float32") for s in slots.split()}
    copy, names = f.layers.scale(x, 1.0), ("X", "Scale", "Bias", "Mean", "Variance")
    outs.update(Y=copy, MeanOut=fixed[0], VarianceOut=fixed[1])
    helper.append_op(
        type="inplace_abn",
        inputs=dict(zip(names, [copy, *made, *fixed])),  # noqa: B905
        outputs=outs,
        attrs=dict({"activation": activation, "alpha": 0.3, "momentum": 0.8}, **attrs),
    )  # fmt: skip
    out = f.layers.scale(outs["Y"], 1.0)  # the gradient overwrites Y
    return [out, outs["MeanOut"], outs["VarianceOut"]], feed, [out, x, *made]


@use
def inplace_abn(f):
    return _abn(f, "identity")


@use
def inplace_abn_leaky(f):
    return _abn(f, "leaky_relu")


@use
def inplace_abn_elu(f):
    return _abn(f, "elu")
