"""Layers that read maps between their pixels: deformable convolution and pooling, and precise
pooling of regions.
"""

import math
from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Normal
from bireme.ir import Variable

from .helper import LayerHelper
from .single import append, checked

__all__ = ["deformable_conv", "deformable_roi_pooling", "prroi_pool"]

Size = int | Sequence[int]


def _pair(value: Size) -> list[int]:
    return [int(n) for n in value] if isinstance(value, list | tuple) else [int(value)] * 2  # type: ignore[arg-type]


def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Convolution of [N, C, H, W] whose taps are shifted by `offset` [N, 2 x groups x taps, H, W]
    and, if `modulated`, weighted by `mask` [N, groups x taps, H, W].
    """
    channels = checked(input, "deformable_conv", "input").shape[1]
    groups = groups or 1
    if channels % groups or num_filters % groups:
        raise InvalidArgument(
            f"deformable_conv: {channels} channels and {num_filters} filters cannot be cut into "
            f"{groups} groups"
        )
    helper = LayerHelper("deformable_conv", **locals())
    kernel = _pair(filter_size)
    weight = helper.create_parameter(
        helper.param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * channels)), 0),
    )
    inputs = {"Input": input, "Filter": weight, "Offset": offset}
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="deformable_conv" if modulated else "deformable_conv_v1",
        inputs={**inputs, "Mask": checked(mask, "deformable_conv", "mask")}
        if modulated
        else inputs,
        outputs={"Output": out},
        attrs={
            "strides": _pair(stride),
            "paddings": _pair(padding),
            "dilations": _pair(dilation),
            "groups": groups,
            "deformable_groups": deformable_groups or 1,
            "im2col_step": im2col_step or 64,
        },
    )
    return helper.append_bias_op(out, dim_start=1, dim_end=2)


def deformable_roi_pooling(
    input: Variable,
    rois: Variable,
    trans: Variable,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Sequence[int] = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Sequence[int] | None = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Variable:
    """The mean of points in each part of each region, shifted by `trans` [R, 2 x classes, height,
    width]; [R, C, height, width], or C / (height x width) channels if `position_sensitive`.
    """
    channels = checked(input, "deformable_roi_pooling", "input").shape[1]
    attrs = {
        "no_trans": no_trans,
        "spatial_scale": spatial_scale,
        "output_dim": channels // (pooled_height * pooled_width)
        if position_sensitive
        else channels,
        "group_size": list(group_size),
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "part_size": list(part_size or (pooled_height, pooled_width)),
        "sample_per_part": sample_per_part,
        "trans_std": trans_std,
    }
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    return append(
        "deformable_psroi_pooling",
        inputs,
        attrs,
        slot="Output",
        extra={"TopCount": None},
        name=name,
    )


def prroi_pool(
    input: Variable,
    rois: Variable,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    batch_roi_nums: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The mean of the interpolated map over each part of each region [R, C, height, width].

    The images of the regions are said by their LoD, or by `batch_roi_nums` [N].
    """
    inputs = {"X": checked(input, "prroi_pool", "input"), "ROIs": rois}
    if batch_roi_nums is not None:
        inputs["BatchRoINums"] = batch_roi_nums
    attrs = {
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "spatial_scale": spatial_scale,
    }
    return append("prroi_pool", inputs, attrs, name=name)
