"""Layers that resize images or move their elements."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable

from .helper import LayerHelper
from .single import append
from .tensor import fill_constant

__all__ = [
    "affine_channel",
    "image_resize",
    "image_resize_short",
    "interpolate",
    "pixel_shuffle",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
    "shuffle_channel",
    "space_to_depth",
    "temporal_shift",
    "unfold",
]

_METHODS = {"BILINEAR": "bilinear", "NEAREST": "nearest", "TRILINEAR": "trilinear"}


def image_resize(
    input: Variable,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Resize to `out_shape` (numbers, or variables of one number each) or by `scale`, a number or a
    variable of one.
    """
    method = _METHODS.get(resample.upper())
    if method is None:
        raise InvalidArgument(f"resample {resample!r}", hint=f"use {', '.join(_METHODS)}")
    if out_shape is None and scale is None and actual_shape is None:
        raise InvalidArgument("image_resize needs out_shape or scale")
    inputs: dict[str, Any] = {"X": input}
    axes = ["out_d", "out_h", "out_w"] if method == "trilinear" else ["out_h", "out_w"]
    attrs: dict[str, Any] = {"out_d": -1, "out_h": -1, "out_w": -1}
    if isinstance(out_shape, Variable):
        inputs["OutSize"] = out_shape
    elif out_shape is not None:
        if len(out_shape) != len(axes):
            raise InvalidArgument(f"out_shape {list(out_shape)}", hint=f"give {len(axes)} sizes")
        sizes = list(out_shape)
        if any(isinstance(n, Variable) for n in sizes):
            inputs["SizeTensor"] = [_as_variable(n) for n in sizes]
            sizes = [-1 if isinstance(n, Variable) else n for n in sizes]
        attrs.update(zip(axes, map(int, sizes), strict=True))
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    elif scale is not None:
        attrs["scale"] = float(scale)
    if actual_shape is not None:
        inputs["OutSize"] = actual_shape
    attrs.update(
        interp_method=method,
        align_corners=align_corners,
        align_mode=align_mode,
        data_layout={"NCDHW": "NCHW", "NDHWC": "NHWC"}.get(data_format, data_format),
    )
    return append(f"{method}_interp", inputs, attrs, name=name)


def _as_variable(n: Any) -> Variable:
    return n if isinstance(n, Variable) else fill_constant([1], "int32", n)


interpolate = image_resize


def resize_bilinear(
    input: Variable,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` by linear interpolation along both axes."""
    how = (actual_shape, align_corners, align_mode, data_format)
    return image_resize(input, out_shape, scale, name, "BILINEAR", *how)


def resize_trilinear(
    input: Variable,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """`image_resize` of volumes by linear interpolation along three axes."""
    how = (actual_shape, align_corners, align_mode, data_format)
    return image_resize(input, out_shape, scale, name, "TRILINEAR", *how)


def resize_nearest(
    input: Variable,
    out_shape: Any = None,
    scale: Any = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """`image_resize` by the nearest pixel."""
    how = (actual_shape, align_corners, 1, data_format)
    return image_resize(input, out_shape, scale, name, "NEAREST", *how)


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Resize [N, C, H, W] so that its shorter side is `out_short_len` and the ratio stays."""
    height, width = input.shape[2:]
    short = min(height, width)
    sizes = [int(n * out_short_len / short + 0.5) for n in (height, width)]
    return image_resize(input, sizes, resample=resample)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """[N, C r r, H, W] as [N, C, H r, W r] (arXiv 1609.05158)."""
    return append("pixel_shuffle", {"X": x}, {"upscale_factor": upscale_factor})


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Blocks of pixels become channels."""
    return append("space_to_depth", {"X": x}, {"blocksize": blocksize}, name=name)


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """Let the channels of `group` groups take turns (arXiv 1707.01083)."""
    return append("shuffle_channel", {"X": x}, {"group": group}, name=name)


def temporal_shift(
    x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None
) -> Variable:
    """Shift a share of the channels of [N T, C, H, W] along time (arXiv 1811.08383)."""
    attrs = {"seg_num": seg_num, "shift_ratio": shift_ratio}
    return append("temporal_shift", {"X": x}, attrs, name=name)


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: Any = None,
) -> Variable:
    """x * scale + bias, one of each per channel."""
    helper = LayerHelper("affine_channel", **locals())
    out = helper.create_variable_for_type_inference(x.dtype)
    inputs = {"X": x, "Scale": scale, "Bias": bias}
    attrs = {"data_layout": data_layout}
    helper.append_op(type="affine_channel", inputs=inputs, outputs={"Out": out}, attrs=attrs)
    return helper.append_activation(out)


def unfold(
    x: Variable,
    kernel_sizes: int | Sequence[int],
    strides: int | Sequence[int] = 1,
    paddings: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    name: str | None = None,
) -> Variable:
    """Every window of [N, C, H, W] as a column: [N, C * window, number of windows]."""
    pads = [paddings] if isinstance(paddings, int) else list(paddings)
    pads = {1: pads * 4, 2: pads * 2, 4: pads}.get(len(pads), pads)
    if len(pads) != 4:
        raise InvalidArgument(f"paddings {paddings!r}", hint="give one, two or four numbers")
    attrs = {
        "kernel_sizes": _pair(kernel_sizes),
        "strides": _pair(strides),
        "paddings": pads,
        "dilations": _pair(dilations),
    }
    return append("unfold", {"X": x}, attrs, slot="Y", name=name)


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
