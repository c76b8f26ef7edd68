"""Layers over images and volumes: convolutions, their transposes, and pooling."""

import math
from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Normal
from bireme.ir import Variable

from .helper import LayerHelper

__all__ = [
    "adaptive_pool2d",
    "adaptive_pool3d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "pool2d",
    "pool3d",
]

Size = int | Sequence[int]


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Convolution of [N, C, H, W] (or NHWC) with `num_filters` filters.

    `padding` is a number, one or two numbers per axis, 'SAME' or 'VALID'. The filters start normal
    with deviation sqrt(2 / (filter area * C)).
    """
    one_to_one = not use_cudnn and groups == _channels(input, data_format, 2)
    depthwise = one_to_one and num_filters % (groups or 1) == 0
    helper = LayerHelper("depthwise_conv2d" if depthwise else "conv2d", **locals())
    return _conv(helper, 2, input, num_filters, filter_size)


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Any = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Convolution of [N, C, D, H, W] (or NDHWC); see `conv2d`."""
    return _conv(LayerHelper("conv3d", **locals()), 3, input, num_filters, filter_size)


def _conv(helper: LayerHelper, rank: int, x: Variable, filters: int, filter_size: Size) -> Variable:
    layout, kind = helper.kwargs["data_format"], helper.layer_type
    channels = _channels(x, layout, rank)
    groups = helper.kwargs["groups"] or 1
    if channels % groups or filters % groups:
        raise InvalidArgument(
            f"{kind}: {channels} channels and {filters} filters cannot be cut into {groups} groups"
        )
    kernel = _sizes(filter_size, rank, "filter_size")
    deviation = math.sqrt(2.0 / (math.prod(kernel) * channels))
    weight = helper.create_parameter(
        helper.param_attr,
        [filters, channels // groups, *kernel],
        x.dtype,
        default_initializer=Normal(0.0, deviation, 0),
    )
    paddings, algorithm = _padding(helper.kwargs["padding"], rank, layout)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type=kind,
        inputs={"Input": x, "Filter": weight},
        outputs={"Output": out},
        attrs={
            "strides": _sizes(helper.kwargs["stride"], rank, "stride"),
            "paddings": paddings,
            "dilations": _sizes(helper.kwargs["dilation"], rank, "dilation"),
            "groups": groups,
            "padding_algorithm": algorithm,
            "data_format": layout,
        },
    )
    return helper.append_activation(_biased(helper, out, layout))


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Any = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """The transpose of `conv2d`; without a `filter_size` the one that gives `output_size`."""
    one_to_one = not use_cudnn and groups == num_filters == _channels(input, data_format, 2)
    kind = "depthwise_conv2d_transpose" if one_to_one else "conv2d_transpose"
    helper = LayerHelper(kind, **locals())
    return _conv_transpose(helper, 2, input, num_filters, output_size, filter_size)


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Any = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """The transpose of `conv3d`; see `conv2d_transpose`."""
    helper = LayerHelper("conv3d_transpose", **locals())
    return _conv_transpose(helper, 3, input, num_filters, output_size, filter_size)


def _conv_transpose(
    helper: LayerHelper,
    rank: int,
    x: Variable,
    filters: int,
    output_size: Size | None,
    filter_size: Size | None,
) -> Variable:
    layout = helper.kwargs["data_format"]
    channels = _channels(x, layout, rank)
    groups = helper.kwargs["groups"] or 1
    strides = _sizes(helper.kwargs["stride"], rank, "stride")
    dilations = _sizes(helper.kwargs["dilation"], rank, "dilation")
    paddings, algorithm = _padding(helper.kwargs["padding"], rank, layout)
    size = [] if output_size is None else _sizes(output_size, rank, "output_size")
    if filter_size is None:
        if not size:
            raise InvalidArgument(f"{helper.layer_type} needs filter_size or output_size")
        spatial = x.shape[1:-1] if layout in ("NHWC", "NDHWC") else x.shape[2:]
        pads = paddings * 2 if len(paddings) == rank else [*paddings[::2], *paddings[1::2]]
        kernel = [
            (n - (m - 1) * s + pads[i] + pads[i + rank] - 1) // d + 1
            for i, (n, m, s, d) in enumerate(zip(size, spatial, strides, dilations, strict=True))
        ]
    else:
        kernel = _sizes(filter_size, rank, "filter_size")
    weight = helper.create_parameter(
        helper.param_attr, [channels, filters // groups, *kernel], x.dtype
    )
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type=helper.layer_type,
        inputs={"Input": x, "Filter": weight},
        outputs={"Output": out},
        attrs={
            "output_size": size,
            "strides": strides,
            "paddings": paddings,
            "padding_algorithm": algorithm,
            "dilations": dilations,
            "groups": groups,
            "data_format": "NHWC" if layout.endswith("C") else "NCHW",  # whatever the rank
        },
    )
    return helper.append_activation(_biased(helper, out, layout))


def pool2d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """Maximum or mean ('avg') over windows; `exclusive` means do not count the padding."""
    return _pool(LayerHelper("pool2d", **locals()), 2, input)


def pool3d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """`pool2d` over volumes."""
    return _pool(LayerHelper("pool3d", **locals()), 3, input)


def _pool(helper: LayerHelper, rank: int, x: Variable) -> Variable:
    given = helper.kwargs
    if given["pool_type"] not in ("max", "avg"):
        raise InvalidArgument(f"pool_type {given['pool_type']!r}", hint="use 'max' or 'avg'")
    if not given["global_pooling"] and given["pool_size"] == -1:
        raise InvalidArgument("pool_size is missing", hint="give it, or global_pooling=True")
    paddings, algorithm = _padding(given["pool_padding"], rank, given["data_format"])
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type=helper.layer_type,
        inputs={"X": x},
        outputs={"Out": out},
        attrs={
            "pooling_type": given["pool_type"],
            "ksize": _sizes(given["pool_size"], rank, "pool_size"),
            "global_pooling": given["global_pooling"],
            "strides": _sizes(given["pool_stride"], rank, "pool_stride"),
            "paddings": paddings,
            "padding_algorithm": algorithm,
            "ceil_mode": given["ceil_mode"],
            "exclusive": given["exclusive"],
            "data_format": given["data_format"],
            "adaptive": False,
        },
    )
    return out


def adaptive_pool2d(
    input: Variable,
    pool_size: Size,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """Pool [N, C, H, W] to a given size; with `require_index` also the positions of the maxima."""
    return _adaptive("pool2d", 2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Variable,
    pool_size: Size,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """Pool [N, C, D, H, W] to a given size; see `adaptive_pool2d`."""
    return _adaptive("pool3d", 3, input, pool_size, pool_type, require_index, name)


def _adaptive(
    kind: str, rank: int, x: Variable, size: Size, how: str, index: bool, name: str | None
) -> Any:
    if how not in ("max", "avg"):
        raise InvalidArgument(f"pool_type {how!r}", hint="use 'max' or 'avg'")
    if index and how != "max":
        raise InvalidArgument("require_index needs pool_type='max'")
    attrs: dict[str, Any] = {"ksize": _sizes(size, rank, "pool_size"), "adaptive": True}
    zeros, ones = [0] * rank, [1] * rank
    attrs.update(strides=ones, paddings=zeros, global_pooling=False)
    if how == "avg":
        layout = "NCHW" if rank == 2 else "NCDHW"
        attrs.update(pooling_type=how, ceil_mode=False, exclusive=True, data_format=layout)
        attrs.update(padding_algorithm="EXPLICIT")
    else:
        kind = f"max_{kind}_with_index"
    helper = LayerHelper(kind, name=name)
    out = helper.create_variable_for_type_inference(x.dtype)
    outputs = {"Out": out}
    if how == "max":
        outputs["Mask"] = helper.create_variable_for_type_inference("int32", stop_gradient=True)
    helper.append_op(type=kind, inputs={"X": x}, outputs=outputs, attrs=attrs)
    return (out, outputs["Mask"]) if index else out


# -- arguments ---------------------------------------------------------------------------------
def _channels(x: Variable, layout: str, rank: int) -> int:
    last = {2: "NHWC", 3: "NDHWC"}[rank]
    first = {2: "NCHW", 3: "NCDHW"}[rank]
    if layout not in (first, last):
        raise InvalidArgument(f"data_format {layout!r}", hint=f"use {first!r} or {last!r}")
    if len(x.shape) != rank + 2:
        raise InvalidArgument(f"{x.name!r} has shape {list(x.shape)}, {rank + 2} axes are needed")
    channels = x.shape[-1] if layout == last else x.shape[1]
    if channels < 0:
        raise InvalidArgument(f"the number of channels of {x.name!r} is not known")
    return channels


def _sizes(value: Any, rank: int, argument: str) -> list[int]:
    sizes = [int(value)] * rank if isinstance(value, int) else [int(n) for n in value]
    if len(sizes) == 1:
        sizes *= rank
    if len(sizes) != rank:
        raise InvalidArgument(f"{argument} is {value!r}", hint=f"give one number, or {rank}")
    return sizes


def _padding(value: Any, rank: int, layout: str) -> tuple[list[int], str]:
    """The numbers and the algorithm: one number or two per axis, pairs per dimension, or a word."""
    if isinstance(value, str):
        if value.upper() not in ("SAME", "VALID"):
            raise InvalidArgument(f"padding {value!r}", hint="use 'SAME', 'VALID' or numbers")
        return [0] * rank, value.upper()
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        pairs = value[1:-1] if layout in ("NHWC", "NDHWC") else value[2:]
        if len(value) != rank + 2 or any(any(p) for p in value if p not in pairs):
            raise InvalidArgument(f"padding {value!r}", hint="batch and channel take [0, 0]")
        numbers = [int(n) for pair in pairs for n in pair]
    elif isinstance(value, list | tuple) and len(value) == 2 * rank:
        numbers = [int(n) for n in value]
    else:
        return _sizes(value, rank, "padding"), "EXPLICIT"
    even = numbers[::2] == numbers[1::2]
    return (numbers[::2] if even else numbers), "EXPLICIT"


def _biased(helper: LayerHelper, out: Variable, layout: str) -> Variable:
    if layout in ("NHWC", "NDHWC"):
        return helper.append_bias_op(out, dim_start=len(out.shape) - 1)
    return helper.append_bias_op(out, dim_start=1, dim_end=2)
