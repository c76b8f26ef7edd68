"""Layers that pool regions of maps, and the measure of detections."""

from collections.abc import Sequence

from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .single import append

__all__ = ["psroi_pool", "roi_align", "roi_pool"]


def _regions(input: Variable, rois: Variable, rois_lod: Variable | None) -> dict[str, Variable]:
    inputs = {"X": input, "ROIs": rois}
    return inputs if rois_lod is None else {**inputs, "RoisLod": rois_lod}


def roi_pool(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    rois_lod: Variable | None = None,
) -> Variable:
    """The greatest value of each part of each region [R, C, height, width]."""
    attrs = {
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "spatial_scale": spatial_scale,
    }
    inputs = _regions(input, rois, rois_lod)
    return append("roi_pool", inputs, attrs, extra={"Argmax": VarType.INT64})


def roi_align(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
    rois_lod: Variable | None = None,
) -> Variable:
    """The mean of interpolated points in each part of each region [R, C, height, width]."""
    attrs = {
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
        "spatial_scale": spatial_scale,
        "sampling_ratio": sampling_ratio,
    }
    return append("roi_align", _regions(input, rois, rois_lod), attrs, name=name)


def psroi_pool(
    input: Variable,
    rois: Variable,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Variable:
    """The mean of each part of each region, in channels of its own."""
    attrs = {
        "output_channels": output_channels,
        "spatial_scale": spatial_scale,
        "pooled_height": pooled_height,
        "pooled_width": pooled_width,
    }
    return append("psroi_pool", {"X": input, "ROIs": rois}, attrs, name=name)


def detection_map(
    detect_res: Variable,
    label: Variable,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Variable | None = None,
    input_states: Sequence[Variable] | None = None,
    out_states: Sequence[Variable] | None = None,
    ap_version: str = "integral",
) -> Variable:
    """Mean average precision [1] of detections (label, score, box); `ap_version` is integral or
    11point. With states (counts, hits, misses) it goes on from them where `has_state` is 1.
    """
    helper = LayerHelper("detection_map")
    mean = helper.create_variable_for_type_inference("float32", stop_gradient=True)
    outs = list(out_states or ()) or [
        helper.create_variable_for_type_inference(kind, stop_gradient=True)
        for kind in ("int32", "float32", "float32")
    ]
    inputs = {"DetectRes": detect_res, "Label": label}
    if has_state is not None and input_states is not None:
        names = ("PosCount", "TruePos", "FalsePos")
        inputs |= {"HasState": has_state, **dict(zip(names, input_states, strict=True))}
    slots = ("AccumPosCount", "AccumTruePos", "AccumFalsePos")
    helper.append_op(
        type="detection_map",
        inputs=inputs,
        outputs={"MAP": mean, **dict(zip(slots, outs, strict=True))},
        attrs={
            "overlap_threshold": overlap_threshold,
            "evaluate_difficult": evaluate_difficult,
            "ap_type": ap_version,
            "class_num": class_num,
            "background_label": background_label,
        },
    )
    return mean
