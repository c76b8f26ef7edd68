"""relu and the depthwise convolution after it as one operator, without the value in between."""

import functools
from typing import Any

from bireme.arrays.namespaces import Array

from .convolution import conv, conv_grad, conv_shape
from .table import GradOp, op

_KIND = "fused_relu_depthwise_conv2d"
_ATTRS = {
    "strides": (1, 1),
    "paddings": (0, 0),
    "dilations": (1, 1),
    "groups": 1,
    "padding_algorithm": "EXPLICIT",
    "data_format": "NCHW",
}


@op(
    _KIND,
    infer=conv_shape,
    grad=GradOp(uses=("Input", "Filter"), wrt=("Input", "Filter")),
    ins={"Input": "", "Filter": ""},
    outs={"Output": ""},
    attrs=_ATTRS,
)
@functools.wraps(conv, assigned=())
def fused_relu_depthwise_conv2d(xp: Any, Input: Array, *rest: Any) -> Array:
    """depthwise_conv2d(relu(Input))."""
    return conv(xp, xp.maximum(Input, 0), *rest)


@op(f"{_KIND}_grad", returns="Input@GRAD Filter@GRAD", out="Filter@GRAD")
@functools.wraps(conv_grad, assigned=())
def fused_relu_depthwise_conv2d_grad(xp: Any, Input: Array, *rest: Any) -> tuple[Array, Array]:
    """The relu is computed again; its gradient is that of the input where the input is positive."""
    positive = xp.maximum(Input, 0)
    dx, dw = conv_grad(xp, positive, *rest)
    if dx is not None:
        dx *= positive > 0
    return dx, dw
