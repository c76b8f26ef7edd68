"""Layers that detect objects: priors, matching, outputs and the loss of YOLO, proposals."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .single import append, checked

__all__ = [
    "anchor_generator",
    "bipartite_match",
    "box_clip",
    "box_coder",
    "box_decoder_and_assign",
    "collect_fpn_proposals",
    "density_prior_box",
    "distribute_fpn_proposals",
    "generate_proposals",
    "iou_similarity",
    "multiclass_nms",
    "polygon_box_transform",
    "prior_box",
    "target_assign",
    "yolo_box",
    "yolov3_loss",
]

Pair = tuple[Variable, Variable]
_VARIANCE = (0.1, 0.1, 0.2, 0.2)


def _two(
    type: str, inputs: dict[str, Any], attrs: dict[str, Any], slots: str, dtypes: Sequence[Any],
    name: str | None = None,
) -> list[Variable]:  # fmt: skip
    """Append an operator and return its outputs, through which no gradient flows."""
    helper = LayerHelper(type, name=name)
    made = [helper.create_variable_for_type_inference(d, stop_gradient=True) for d in dtypes]
    outputs = dict(zip(slots.split(), made, strict=True))
    helper.append_op(type=type, inputs=inputs, outputs=outputs, attrs=attrs)
    return made


def _floats(values: Any) -> list[float]:
    return [float(v) for v in (values if isinstance(values, list | tuple) else [values])]


def prior_box(
    input: Variable,
    image: Variable,
    min_sizes: Sequence[float],
    max_sizes: Sequence[float] | None = None,
    aspect_ratios: Sequence[float] = (1.0,),
    variance: Sequence[float] = _VARIANCE,
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> Pair:
    """Prior boxes of SSD and their variances, both [H, W, priors, 4], in parts of the image."""
    if max_sizes and len(max_sizes) != len(_floats(min_sizes)):
        raise InvalidArgument(f"{len(max_sizes)} max_sizes for {len(_floats(min_sizes))} min_sizes")
    attrs: dict[str, Any] = {
        "min_sizes": _floats(min_sizes),
        "aspect_ratios": _floats(aspect_ratios),
        "variances": _floats(variance),
        "flip": flip,
        "clip": clip,
        "step_w": float(steps[0]),
        "step_h": float(steps[1]),
        "offset": offset,
        "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }
    if max_sizes and _floats(max_sizes)[0] > 0:
        attrs["max_sizes"] = _floats(max_sizes)
    inputs = {"Input": input, "Image": image}
    kinds = (checked(input, "prior_box", "input").dtype,) * 2
    boxes, spread = _two("prior_box", inputs, attrs, "Boxes Variances", kinds, name)
    return boxes, spread


def density_prior_box(
    input: Variable,
    image: Variable,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = _VARIANCE,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> Pair:
    """Prior boxes with a density for each size, and their variances."""
    if len(densities or ()) != len(fixed_sizes or ()):
        raise InvalidArgument("density_prior_box: densities and fixed_sizes differ in length")
    attrs = {
        "variances": _floats(variance),
        "clip": clip,
        "step_w": float(steps[0]),
        "step_h": float(steps[1]),
        "offset": offset,
        "densities": [int(n) for n in densities or ()],
        "fixed_sizes": _floats(list(fixed_sizes or ())),
        "fixed_ratios": _floats(list(fixed_ratios or ())),
        "flatten_to_2d": flatten_to_2d,
    }
    inputs = {"Input": input, "Image": image}
    kinds = (input.dtype,) * 2
    boxes, spread = _two("density_prior_box", inputs, attrs, "Boxes Variances", kinds, name)
    return boxes, spread


def anchor_generator(
    input: Variable,
    anchor_sizes: Any = None,
    aspect_ratios: Any = None,
    variance: Sequence[float] = _VARIANCE,
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> Pair:
    """Anchors in pixels and their variances, both [H, W, anchors, 4]."""
    if stride is None or len(stride) != 2:
        raise InvalidArgument(f"anchor_generator: stride {stride}", hint="give [width, height]")
    attrs = {
        "anchor_sizes": _floats(anchor_sizes),
        "aspect_ratios": _floats(aspect_ratios),
        "variances": _floats(variance),
        "stride": _floats(stride),
        "offset": offset,
    }
    kinds = (checked(input, "anchor_generator", "input").dtype,) * 2
    slots = "Anchors Variances"
    anchors, spread = _two("anchor_generator", {"Input": input}, attrs, slots, kinds, name)
    return anchors, spread


def iou_similarity(
    x: Variable, y: Variable, box_normalized: bool = True, name: str | None = None
) -> Variable:
    """Intersection over union of each box of x with each of y."""
    return append("iou_similarity", {"X": x, "Y": y}, {"box_normalized": box_normalized}, name=name)


def box_coder(
    prior_box: Variable,
    prior_box_var: Any,
    target_box: Variable,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Variable:
    """Boxes relative to priors, or back; the variance is a variable, a list of 4, or None."""
    attrs = {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    inputs = {"PriorBox": prior_box, "TargetBox": target_box}
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    elif prior_box_var is not None:
        attrs["variance"] = _floats(prior_box_var)
    dtype = checked(prior_box, "box_coder", "prior_box").dtype
    return append("box_coder", inputs, attrs, slot="OutputBox", dtype=dtype, name=name)


def box_decoder_and_assign(
    prior_box: Variable,
    prior_box_var: Variable,
    target_box: Variable,
    box_score: Variable,
    box_clip: float,
    name: str | None = None,
) -> Pair:
    """The boxes of every class, and each prior's likeliest one."""
    inputs = {
        "PriorBox": prior_box,
        "PriorBoxVar": prior_box_var,
        "TargetBox": target_box,
        "BoxScore": box_score,
    }
    kinds = (prior_box.dtype,) * 2
    slots = "DecodeBox OutputAssignBox"
    boxes, best = _two("box_decoder_and_assign", inputs, {"box_clip": box_clip}, slots, kinds, name)
    return boxes, best


def box_clip(input: Variable, im_info: Variable, name: str | None = None) -> Variable:
    """Boxes cut at their image; `im_info` is [height, width, scale] for each."""
    return append("box_clip", {"Input": input, "ImInfo": im_info}, slot="Output", name=name)


def polygon_box_transform(input: Variable, name: str | None = None) -> Variable:
    """Offsets of polygons' corners on a grid [N, 2 x corners, H, W] to corners."""
    return append("polygon_box_transform", {"Input": input}, slot="Output", name=name)


def bipartite_match(
    dist_matrix: Variable,
    match_type: str | None = None,
    dist_threshold: float | None = None,
    name: str | None = None,
) -> Pair:
    """(row of each column or -1, distance): the greatest distances first."""
    attrs: dict[str, Any] = {} if match_type is None else {"match_type": match_type}
    if dist_threshold is not None:
        attrs["dist_threshold"] = dist_threshold
    kinds = (VarType.INT32, dist_matrix.dtype)
    slots = "ColToRowMatchIndices ColToRowMatchDist"
    index, value = _two("bipartite_match", {"DistMat": dist_matrix}, attrs, slots, kinds, name)
    return index, value


def target_assign(
    input: Variable,
    matched_indices: Variable,
    negative_indices: Variable | None = None,
    mismatch_value: int | None = None,
    name: str | None = None,
) -> Pair:
    """(the row of `input` that each column was matched to, its weight)."""
    inputs = {"X": input, "MatchIndices": matched_indices}
    if negative_indices is not None:
        inputs["NegIndices"] = negative_indices
    kinds = (input.dtype, VarType.FP32)
    attrs = {"mismatch_value": mismatch_value or 0}
    out, weight = _two("target_assign", inputs, attrs, "Out OutWeight", kinds, name)
    return out, weight


def multiclass_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Variable:
    """Rows (label, score, box) of the boxes that are left in each image, as sequences."""
    attrs = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "keep_top_k": keep_top_k,
        "nms_eta": nms_eta,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return append("multiclass_nms", inputs, attrs, name=name, stop_gradient=True)


def generate_proposals(
    scores: Variable,
    bbox_deltas: Variable,
    im_info: Variable,
    anchors: Variable,
    variances: Variable,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> tuple[Variable, ...]:
    """(regions, their scores) of a region proposal network, and where each image's end."""
    inputs = {
        "Scores": scores,
        "BboxDeltas": bbox_deltas,
        "ImInfo": im_info,
        "Anchors": anchors,
        "Variances": variances,
    }
    attrs = {
        "pre_nms_topN": pre_nms_top_n,
        "post_nms_topN": post_nms_top_n,
        "nms_thresh": nms_thresh,
        "min_size": min_size,
        "eta": eta,
    }
    kinds = (bbox_deltas.dtype, scores.dtype, VarType.INT64)
    slots = "RpnRois RpnRoiProbs RpnRoisLod"
    made = _two("generate_proposals", inputs, attrs, slots, kinds, name)
    return tuple(made if return_rois_num else made[:2])


def distribute_fpn_proposals(
    fpn_rois: Variable,
    min_level: int,
    max_level: int,
    refer_level: int,
    refer_scale: int,
    name: str | None = None,
) -> tuple[list[Variable], Variable]:
    """(regions of each level, the place of each region among them)."""
    helper = LayerHelper("distribute_fpn_proposals", name=name)
    kind = fpn_rois.dtype
    levels = range(min_level, max_level + 1)
    parts = [helper.create_variable_for_type_inference(kind, stop_gradient=True) for _ in levels]
    restore = helper.create_variable_for_type_inference(VarType.INT32, stop_gradient=True)
    helper.append_op(
        type="distribute_fpn_proposals",
        inputs={"FpnRois": fpn_rois},
        outputs={"MultiFpnRois": parts, "RestoreIndex": restore},
        attrs={
            "min_level": min_level,
            "max_level": max_level,
            "refer_level": refer_level,
            "refer_scale": refer_scale,
        },
    )
    return parts, restore


def collect_fpn_proposals(
    multi_rois: Sequence[Variable],
    multi_scores: Sequence[Variable],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> Variable:
    """The best regions of the levels from `min_level` to `max_level`."""
    count = max_level - min_level + 1
    inputs = {
        "MultiLevelRois": list(multi_rois[:count]),
        "MultiLevelScores": list(multi_scores[:count]),
    }
    attrs = {"post_nms_topN": post_nms_top_n}
    return append(
        "collect_fpn_proposals", inputs, attrs, slot="FpnRois", name=name, stop_gradient=True
    )


def yolo_box(
    x: Variable,
    img_size: Variable,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Pair:
    """(boxes in pixels, scores by class) of a YOLO v3 head."""
    attrs = {
        "anchors": list(anchors),
        "class_num": class_num,
        "conf_thresh": conf_thresh,
        "downsample_ratio": downsample_ratio,
        "clip_bbox": clip_bbox,
        "scale_x_y": scale_x_y,
    }
    inputs = {"X": checked(x, "yolo_box", "x"), "ImgSize": img_size}
    boxes, scores = _two("yolo_box", inputs, attrs, "Boxes Scores", (x.dtype,) * 2, name)
    return boxes, scores


def yolov3_loss(
    x: Variable,
    gt_box: Variable,
    gt_label: Variable,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Variable | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Variable:
    """The loss of each image [N]; boxes are (centre x, centre y, width, height) in parts of it."""
    inputs = {"X": checked(x, "yolov3_loss", "x"), "GTBox": gt_box, "GTLabel": gt_label}
    if gt_score is not None:
        inputs["GTScore"] = gt_score
    attrs = {
        "anchors": list(anchors),
        "anchor_mask": list(anchor_mask),
        "class_num": class_num,
        "ignore_thresh": ignore_thresh,
        "downsample_ratio": downsample_ratio,
        "use_label_smooth": use_label_smooth,
        "scale_x_y": scale_x_y,
    }
    extra = {"ObjectnessMask": None, "GTMatchMask": VarType.INT32}
    return append("yolov3_loss", inputs, attrs, slot="Loss", extra=extra, name=name)
