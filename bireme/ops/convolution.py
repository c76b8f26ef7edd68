"""Convolutions and their transposes as operators: shapes, layouts, gradients.

A transposed convolution is the gradient of the input of a convolution, and the other way round;
`correlation` computes both.
"""

from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from .correlation import convolve, filter_gradient, input_gradient
from .elementwise import pair
from .table import GradOp, Infer, op
from .windows import Geometry, channels_first, channels_last, geometry, is_channels_last


def conv_shape(ctx: Infer) -> None:
    x, w = ctx.x("Input"), ctx.x("Filter")
    last = is_channels_last(ctx.attr("data_format"))
    channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    groups = ctx.attr("groups")
    if len(x.shape) != len(w.shape):
        raise InvalidArgument(f"input of rank {len(x.shape)}, filter of rank {len(w.shape)}")
    if channels >= 0 and channels != w.shape[1] * groups:
        raise InvalidArgument(
            f"the input has {channels} channels, the filter wants {w.shape[1]} x {groups} groups"
        )
    out = _geometry(ctx, spatial, w.shape[2:]).out(spatial)
    if any(n == 0 or n < -1 for n in out):
        raise InvalidArgument(f"a filter {list(w.shape[2:])} does not fit an input {list(spatial)}")
    shape = (x.shape[0], *out, w.shape[0]) if last else (x.shape[0], w.shape[0], *out)
    ctx.set("Output", shape, like=x)


def _geometry(ctx: Infer, spatial: Any, kernel: Any) -> Geometry:
    names = ("strides", "paddings", "dilations", "padding_algorithm")
    return geometry(spatial, kernel, *map(ctx.attr, names))


def _transpose_shape(ctx: Infer) -> None:
    x, w = ctx.x("Input"), ctx.x("Filter")
    last = is_channels_last(ctx.attr("data_format"))
    spatial = x.shape[1:-1] if last else x.shape[2:]
    geo = _geometry(ctx, spatial, w.shape[2:])
    out = tuple(ctx.attr("output_size")) or _transposed_size(spatial, geo)
    channels = w.shape[1] * ctx.attr("groups")
    shape = (x.shape[0], *out, channels) if last else (x.shape[0], channels, *out)
    ctx.set("Output", shape, like=x)


def _transposed_size(spatial: Any, geo: Geometry) -> tuple[int, ...]:
    axes = zip(spatial, geo.kernel, geo.strides, geo.pads, geo.dilations, strict=True)
    return tuple(-1 if n < 0 else (n - 1) * s - sum(p) + d * (k - 1) + 1 for n, k, s, p, d in axes)


class _Call:
    """The arguments of one call, channels first."""

    def __init__(
        self,
        x: Array,
        w: Array,
        strides: Any,
        paddings: Any,
        dilations: Any,
        algorithm: str,
        layout: str,
    ) -> None:
        self.last = is_channels_last(layout)
        self.x = channels_first(x) if self.last else x
        self.geo = geometry(self.x.shape[2:], w.shape[2:], strides, paddings, dilations, algorithm)

    def first(self, array: Array) -> Array:
        return channels_first(array) if self.last else array

    def result(self, array: Array) -> Array:
        return channels_last(array) if self.last else array


def conv(
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
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    return call.result(convolve(xp, call.x, Filter, call.geo, groups))


def conv_grad(
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
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    dy = call.first(dOutput)
    dx = dw = None
    if "Input@GRAD" in need:
        dx = call.result(input_gradient(xp, dy, Filter, call.geo, groups, call.x.shape))
    if "Filter@GRAD" in need:
        dw = filter_gradient(xp, call.x, dy, call.geo, groups, Filter.shape, pair(out)[1])
    return dx, dw


def conv_transpose(
    xp: Any,
    Input: Array,
    Filter: Array,
    strides: Any,
    paddings: Any,
    dilations: Any,
    groups: int,
    padding_algorithm: str,
    data_format: str,
    output_size: Any,
) -> Array:
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    size = tuple(output_size) or _transposed_size(call.x.shape[2:], call.geo)
    shape = (len(Input), Filter.shape[1] * groups, *size)
    geo = _reaching(call.geo, size, call.x.shape[2:])
    return call.result(input_gradient(xp, call.x, Filter, geo, groups, shape))


def conv_transpose_grad(
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
    call = _Call(Input, Filter, strides, paddings, dilations, padding_algorithm, data_format)
    dy = call.first(dOutput)
    geo = _reaching(call.geo, dy.shape[2:], call.x.shape[2:])
    dx = dw = None
    if "Input@GRAD" in need:
        dx = call.result(convolve(xp, dy, Filter, geo, groups))
    if "Filter@GRAD" in need:
        dw = filter_gradient(xp, dy, call.x, geo, groups, Filter.shape, pair(out)[1])
    return dx, dw


def _reaching(geo: Geometry, size: Any, spatial: Any) -> Geometry:
    """The geometry whose windows over `size` number `spatial`: a border behind may shrink."""
    axes = zip(size, spatial, geo.kernel, geo.strides, geo.pads, geo.dilations, strict=True)
    behind = [(m - 1) * s + d * (k - 1) + 1 - n - lo for n, m, k, s, (lo, _), d in axes]
    pads = tuple((lo, max(hi, 0)) for (lo, _), hi in zip(geo.pads, behind, strict=True))
    return geo._replace(pads=pads)


_GRAD = GradOp(uses=("Input", "Filter", "Bias"), wrt=("Input", "Filter", "Bias"))
_GRAD_3D = GradOp(uses=("Input", "Filter", "ResidualData"), wrt=("Input", "Filter"))
_RETURNS, _OUT = "Input@GRAD Filter@GRAD", "Filter@GRAD"

for _name in ("conv2d", "depthwise_conv2d"):
    op(_name, infer=conv_shape, grad=_GRAD)(conv)
    op(f"{_name}_grad", returns=_RETURNS, out=_OUT)(conv_grad)
for _name in ("conv2d_transpose", "depthwise_conv2d_transpose"):
    op(_name, infer=_transpose_shape, grad=_GRAD)(conv_transpose)
    op(f"{_name}_grad", returns=_RETURNS, out=_OUT)(conv_transpose_grad)

op("conv3d", infer=conv_shape, grad=_GRAD_3D)(conv)
op("conv3d_grad", returns=_RETURNS, out=_OUT)(conv_grad)
op("conv3d_transpose", infer=_transpose_shape, grad=GradOp(uses=("Input", "Filter")))(
    conv_transpose
)
op("conv3d_transpose_grad", returns=_RETURNS, out=_OUT)(conv_transpose_grad)
