"""relu and the depthwise convolution after it as one operator, without the value in between."""

from typing import Any

from bireme.arrays.namespaces import Array

from .convolution import conv, conv_grad, conv_shape
from .elementwise import pair
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
def fused_relu_depthwise_conv2d(
    xp: Any,
    Input: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
) -> Array:
    """depthwise_conv2d(relu(Input))."""
    window = (strides, paddings, dilations, groups, padding_algorithm, data_format)
    return conv(xp, xp.maximum(Input, 0), Filter, *window)


@op(f"{_KIND}_grad", returns="Input@GRAD Filter@GRAD", out="Filter@GRAD")
def fused_relu_depthwise_conv2d_grad(
    xp: Any,
    Input: Array,
    Filter: Array,
    dOutput: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
    need: frozenset[str],
    out: Array = None,
) -> tuple[Array, Array]:
    """The relu is computed again; its gradient is that of the input where the input is positive."""
    window = (strides, paddings, dilations, groups, padding_algorithm, data_format)
    positive = xp.maximum(Input, 0)
    dx, dw = conv_grad(xp, positive, Filter, dOutput, *window, need, (None, pair(out)[1]))
    if dx is not None:
        dx *= positive > 0
    return dx, dw
