"""Layers that keep few boxes of many, beside `multiclass_nms`."""

from collections.abc import Sequence

from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .single import append, checked

__all__ = ["locality_aware_nms", "matrix_nms", "retinanet_detection_output"]


def matrix_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    return_index: bool = False,
    name: str | None = None,
) -> Variable | tuple[Variable, Variable]:
    """Rows (label, score, box) whose scores are lowered by better boxes that overlap them; with
    `return_index` also where each box stands in all boxes [R, 1].
    """
    helper = LayerHelper("matrix_nms", name=name)
    kind = checked(bboxes, "matrix_nms", "bboxes").dtype
    out = helper.create_variable_for_type_inference(kind, stop_gradient=True)
    index = helper.create_variable_for_type_inference(VarType.INT32, stop_gradient=True)
    helper.append_op(
        type="matrix_nms",
        inputs={"BBoxes": bboxes, "Scores": scores},
        outputs={"Out": out, "Index": index},
        attrs={
            "background_label": background_label,
            "score_threshold": score_threshold,
            "post_threshold": post_threshold,
            "nms_top_k": nms_top_k,
            "gaussian_sigma": gaussian_sigma,
            "use_gaussian": use_gaussian,
            "keep_top_k": keep_top_k,
            "normalized": normalized,
        },
    )
    return (out, index) if return_index else out


def locality_aware_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Variable:
    """Rows (label, score, box) of neighbouring boxes merged and then suppressed, as sequences."""
    attrs = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "nms_eta": nms_eta,
        "keep_top_k": keep_top_k,
        "normalized": normalized,
    }
    inputs = {"BBoxes": bboxes, "Scores": scores}
    return append("locality_aware_nms", inputs, attrs, name=name, stop_gradient=True)


def retinanet_detection_output(
    bboxes: Sequence[Variable],
    scores: Sequence[Variable],
    anchors: Sequence[Variable],
    im_info: Variable,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Variable:
    """Rows (label, score, box) detected by all levels of RetinaNet, as sequences."""
    inputs = {
        "BBoxes": list(bboxes),
        "Scores": list(scores),
        "Anchors": list(anchors),
        "ImInfo": im_info,
    }
    attrs = {
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "keep_top_k": keep_top_k,
        "nms_eta": nms_eta,
    }
    return append("retinanet_detection_output", inputs, attrs, stop_gradient=True)
