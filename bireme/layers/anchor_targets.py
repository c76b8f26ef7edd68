"""Layers that say what a detector is trained on: anchors and proposals, their labels,
boxes and masks.
"""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .picking import gather
from .shaping import reshape
from .single import checked

__all__ = [
    "generate_mask_labels",
    "generate_proposal_labels",
    "retinanet_target_assign",
    "rpn_target_assign",
]


def _made(type: str, inputs: Any, attrs: Any, kinds: dict[str, Any]) -> list[Variable]:
    """The outputs of an operator, named by slot with their dtypes; no gradient flows to them."""
    helper = LayerHelper(type)
    made = {
        slot: helper.create_variable_for_type_inference(kind, stop_gradient=True)
        for slot, kind in kinds.items()
    }
    helper.append_op(type=type, inputs=inputs, outputs=made, attrs=attrs)
    return list(made.values())


def _anchor_slots(boxes: Variable) -> dict[str, Any]:
    return {
        "LocationIndex": VarType.INT32,
        "ScoreIndex": VarType.INT32,
        "TargetLabel": VarType.INT32,
        "TargetBBox": boxes.dtype,
        "BBoxInsideWeight": boxes.dtype,
    }


def rpn_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    is_crowd: Variable,
    im_info: Variable,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[Variable, ...]:
    """What a region proposal network is trained on: (logits [F + B, 1], boxes [F, 4], labels
    [F + B, 1], box targets [F, 4], their weights [F, 4]) of F foreground and B background anchors.
    """
    inputs = {
        "Anchor": checked(anchor_box, "rpn_target_assign", "anchor_box"),
        "GtBoxes": gt_boxes,
        "IsCrowd": is_crowd,
        "ImInfo": im_info,
    }
    attrs = {
        "rpn_batch_size_per_im": rpn_batch_size_per_im,
        "rpn_straddle_thresh": rpn_straddle_thresh,
        "rpn_positive_overlap": rpn_positive_overlap,
        "rpn_negative_overlap": rpn_negative_overlap,
        "rpn_fg_fraction": rpn_fg_fraction,
        "use_random": use_random,
    }
    made = _made("rpn_target_assign", inputs, attrs, _anchor_slots(anchor_box))
    location, score, label, box, weight = made
    logits = gather(reshape(cls_logits, [-1, 1]), score)
    return logits, gather(reshape(bbox_pred, [-1, 4]), location), label, box, weight


def retinanet_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    gt_labels: Variable,
    is_crowd: Variable,
    im_info: Variable,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[Variable, ...]:
    """What RetinaNet is trained on: (logits [F + B, classes], boxes [F, 4], labels [F + B, 1], box
    targets [F, 4], their weights [F, 4], 1 + foreground anchors of each image [N, 1]).
    """
    inputs = {
        "Anchor": checked(anchor_box, "retinanet_target_assign", "anchor_box"),
        "GtBoxes": gt_boxes,
        "GtLabels": gt_labels,
        "IsCrowd": is_crowd,
        "ImInfo": im_info,
    }
    attrs = {"positive_overlap": positive_overlap, "negative_overlap": negative_overlap}
    kinds = {**_anchor_slots(anchor_box), "ForegroundNumber": VarType.INT32}
    made = _made("retinanet_target_assign", inputs, attrs, kinds)
    location, score, label, box, weight, count = made
    logits = gather(reshape(cls_logits, [-1, num_classes]), score)
    return logits, gather(reshape(bbox_pred, [-1, 4]), location), label, box, weight, count


def generate_proposal_labels(
    rpn_rois: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_boxes: Variable,
    im_info: Variable,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[Variable, ...]:
    """What the second stage is trained on: (regions [R, 4], labels [R, 1], box targets, their
    weights, and weights once more, each [R, 4 x classes]), as sequences over the images.
    """
    if class_nums is None:
        raise InvalidArgument("generate_proposal_labels needs class_nums")
    inputs = {
        "RpnRois": checked(rpn_rois, "generate_proposal_labels", "rpn_rois"),
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtBoxes": gt_boxes,
        "ImInfo": im_info,
    }
    attrs = {
        "batch_size_per_im": batch_size_per_im,
        "fg_fraction": fg_fraction,
        "fg_thresh": fg_thresh,
        "bg_thresh_hi": bg_thresh_hi,
        "bg_thresh_lo": bg_thresh_lo,
        "bbox_reg_weights": [float(w) for w in bbox_reg_weights],
        "class_nums": class_nums,
        "use_random": use_random,
        "is_cls_agnostic": is_cls_agnostic,
        "is_cascade_rcnn": is_cascade_rcnn,
    }
    kinds = {
        "Rois": rpn_rois.dtype,
        "LabelsInt32": VarType.INT32,
        "BboxTargets": rpn_rois.dtype,
        "BboxInsideWeights": rpn_rois.dtype,
        "BboxOutsideWeights": rpn_rois.dtype,
    }
    return tuple(_made("generate_proposal_labels", inputs, attrs, kinds))


def generate_mask_labels(
    im_info: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_segms: Variable,
    rois: Variable,
    labels_int32: Variable,
    num_classes: int,
    resolution: int,
) -> tuple[Variable, ...]:
    """What a mask head is trained on: (the foreground regions [F, 4], which of all regions they are
    [F, 1], masks [F, classes x resolution x resolution]: 0 or 1 in the columns of their class, -1
    elsewhere). `gt_segms` [points, 2] is a sequence of objects, of polygons, of points.
    """
    inputs = {
        "ImInfo": im_info,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtSegms": checked(gt_segms, "generate_mask_labels", "gt_segms"),
        "Rois": checked(rois, "generate_mask_labels", "rois"),
        "LabelsInt32": labels_int32,
    }
    attrs = {"num_classes": num_classes, "resolution": resolution}
    kinds = {
        "MaskRois": rois.dtype,
        "RoiHasMaskInt32": VarType.INT32,
        "MaskInt32": VarType.INT32,
    }
    return tuple(_made("generate_mask_labels", inputs, attrs, kinds))
