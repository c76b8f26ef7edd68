"""Convolutions, pooling, normalisation."""

from typing import Any

import numpy as np

from .table import Call, converts

CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")
TRANSPOSED = ("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")


def _channels_first(op: Call, attr: str) -> None:
    if op.attr(attr) in ("NHWC", "NDHWC"):
        raise op.refused(f"{attr}={op.attr(attr)!r}", "build the model with channels first")


def _padding(op: Call, axes: int) -> dict[str, Any]:
    """pads of ONNX: those before all axes, then those behind."""
    algorithm, given = op.attr("padding_algorithm") or "EXPLICIT", list(op.attr("paddings"))
    if algorithm == "SAME":
        return {"auto_pad": "SAME_UPPER"}
    if algorithm == "VALID":
        given = [0] * axes
    if len(given) == axes:
        return {"pads": given + given}
    return {"pads": given[::2] + given[1::2]}


@converts(*CONVOLUTIONS, *TRANSPOSED)
def convolution(op: Call) -> None:
    _channels_first(op, "data_format")
    axes = len(op.shape("Input")) - 2
    attrs: dict[str, Any] = {name: list(op.attr(name)) for name in ("strides", "dilations")}
    attrs |= {"group": op.attr("groups") or 1, **_padding(op, axes)}
    kind = "Conv" if op.op.type in CONVOLUTIONS else "ConvTranspose"
    if kind == "ConvTranspose" and op.attr("output_size"):
        raise op.refused("output_size", "choose filter, stride and padding instead")
    bias = [op.x("Bias")] if op.has("Bias") else []
    op.put("Output", kind, op.x("Input"), op.x("Filter"), *bias, **attrs)


@converts("pool2d", "pool3d")
def pool(op: Call) -> None:
    _channels_first(op, "data_format")
    kind = {"max": "MaxPool", "avg": "AveragePool"}[op.attr("pooling_type")]
    ksize = list(op.attr("ksize"))
    if op.attr("global_pooling") or (op.attr("adaptive") and set(ksize) == {1}):
        op.put("Out", f"Global{kind}", op.x("X"))
        return
    if op.attr("adaptive"):
        raise op.refused("adaptive pooling to more than one value")
    attrs: dict[str, Any] = {"kernel_shape": ksize, "strides": list(op.attr("strides"))}
    attrs |= _padding(op, len(ksize))
    if kind == "AveragePool":
        if op.attr("ceil_mode"):
            raise op.refused("average pooling with ceil_mode", "pad the image instead")
        attrs["count_include_pad"] = int(op.attr("exclusive") is False)
    attrs["ceil_mode"] = int(bool(op.attr("ceil_mode")))
    op.put("Out", kind, op.x("X"), **attrs)


@converts("batch_norm", "sync_batch_norm")
def batch_norm(op: Call) -> None:
    _channels_first(op, "data_layout")
    if not (op.attr("is_test") or op.attr("use_global_stats")) or op.attr("trainable_statistics"):
        raise op.refused("training", "save clone(for_test=True)")
    inputs = (op.x(slot) for slot in ("X", "Scale", "Bias", "Mean", "Variance"))
    op.put("Y", "BatchNormalization", *inputs, epsilon=op.attr("epsilon"))


@converts("layer_norm")
def layer_norm(op: Call) -> None:
    g, shape, at = op.graph, op.shape("X"), op.attr("begin_norm_axis")
    size = int(np.prod(shape[at:]))
    if size < 0 and not op.has("Scale"):
        raise op.refused("a normalised size that is not known")
    scale = op.x("Scale") if op.has("Scale") else g.constant(np.ones(size), op.dtype("X"))
    bias = [op.x("Bias")] if op.has("Bias") else []
    flat = at != len(shape) - 1
    x = g.add("Flatten", op.x("X"), axis=at) if flat else op.x("X")
    y = g.add("LayerNormalization", x, scale, *bias, axis=-1, epsilon=op.attr("epsilon"))
    if flat:
        op.put("Y", "Reshape", y, g.add("Shape", op.x("X")))
    else:
        op.put("Y", "Identity", y)


@converts("pad2d")
def pad2d(op: Call) -> None:
    _channels_first(op, "data_format")
    if op.has("Paddings"):
        raise op.refused("paddings that are a tensor")
    top, bottom, left, right = op.attr("paddings")
    mode = {"constant": "constant", "reflect": "reflect", "edge": "edge"}[op.attr("mode")]
    pads = op.graph.ints(0, 0, top, left, 0, 0, bottom, right)
    op.put("Out", "Pad", op.x("X"), pads, op.number(op.attr("pad_value")), mode=mode)
