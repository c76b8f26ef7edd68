"""SSD put together (arXiv 1512.02325): its head over several maps, its loss, its detections."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType

from .detection import (
    bipartite_match,
    box_coder,
    iou_similarity,
    multiclass_nms,
    prior_box,
    target_assign,
)
from .elementwise import elementwise_div
from .helper import LayerHelper
from .loss import smooth_l1, softmax_with_cross_entropy
from .nn import softmax
from .reduction import reduce_sum
from .shaping import flatten, reshape, transpose
from .tensor import cast, concat
from .vision import conv2d

__all__ = ["detection_output", "multi_box_head", "ssd_loss"]


def _sizes(low: int, high: int, base: float, count: int) -> tuple[list[float], list[float]]:
    """Sizes of the priors of each map: small ones first, then evenly between the ratios."""
    step = (high - low) // (count - 2) if count > 2 else high - low + 1
    ratios = range(low, high + 1, step)
    small = [base * 0.10, *(base * r / 100.0 for r in ratios)]
    return small, [base * 0.20, *(base * (r + step) / 100.0 for r in ratios)]


def _nth(values: Any, i: int) -> Any:
    """What belongs to the i-th map, as a list."""
    each = values[i] if values else []
    return each if isinstance(each, list | tuple) else [each]


def multi_box_head(
    inputs: Sequence[Variable],
    image: Variable,
    base_size: float,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Any = None,
    max_sizes: Any = None,
    steps: Any = None,
    step_w: Any = None,
    step_h: Any = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: int = 1,
    pad: int = 0,
    stride: int = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable, Variable, Variable]:
    """(locations [N, priors, 4], scores [N, priors, classes], priors [priors, 4], variances) of
    all maps together.

    Raises:
        InvalidArgument: an argument has not one value for each map.
    """
    if min_sizes is None:
        if min_ratio is None or max_ratio is None:
            raise InvalidArgument("multi_box_head needs min_sizes, or min_ratio and max_ratio")
        min_sizes, max_sizes = _sizes(min_ratio, max_ratio, base_size, len(inputs))
    for what, values in {"aspect_ratios": aspect_ratios, "min_sizes": min_sizes}.items():
        if len(values) != len(inputs):
            raise InvalidArgument(f"multi_box_head: {len(values)} {what} for {len(inputs)} inputs")
    step_w, step_h = (steps, steps) if steps else (step_w, step_h)
    locations: list[Variable] = []
    scores: list[Variable] = []
    boxes: list[Variable] = []
    spreads: list[Variable] = []
    for i, x in enumerate(inputs):
        step = [step_w[i] if step_w else 0.0, step_h[i] if step_h else 0.0]
        box, spread = prior_box(
            x, image, _nth(min_sizes, i), _nth(max_sizes, i) or None, _nth(aspect_ratios, i),
            variance, flip, clip, step, offset, None, min_max_aspect_ratios_order,
        )  # fmt: skip
        boxes.append(flatten(box, axis=3))
        spreads.append(flatten(spread, axis=3))
        for found, width in ((locations, 4), (scores, num_classes)):
            maps = conv2d(x, box.shape[2] * width, kernel_size, stride, pad)
            found.append(flatten(transpose(maps, [0, 2, 3, 1]), axis=1))
    if len(inputs) == 1:
        location, score, prior, spread = locations[0], scores[0], boxes[0], spreads[0]
    else:
        location, score = concat(locations, axis=1), concat(scores, axis=1)
        prior, spread = concat(boxes), concat(spreads)
    prior.stop_gradient = spread.stop_gradient = True
    located = reshape(location, [0, -1, 4])
    return located, reshape(score, [0, -1, num_classes]), prior, spread


def detection_output(
    loc: Variable,
    scores: Variable,
    prior_box: Variable,
    prior_box_var: Variable,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """Rows (label, score, box) of each image from the head's locations and raw scores; with
    `return_index` their places, too.
    """
    boxes = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    likely = transpose(softmax(scores), [0, 2, 1])
    likely.stop_gradient = True
    given = (score_threshold, nms_top_k, keep_top_k, nms_threshold, True, nms_eta, background_label)
    if not return_index:
        return multiclass_nms(boxes, likely, *given)
    return nms_with_index(boxes, likely, *given)


def nms_with_index(
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
) -> tuple[Variable, Variable]:
    """`multiclass_nms`, and the place of each row among all boxes."""
    helper = LayerHelper("multiclass_nms2", name=name)
    out = helper.create_variable_for_type_inference(bboxes.dtype, stop_gradient=True)
    index = helper.create_variable_for_type_inference(VarType.INT32, stop_gradient=True)
    helper.append_op(
        type="multiclass_nms2",
        inputs={"BBoxes": bboxes, "Scores": scores},
        outputs={"Out": out, "Index": index},
        attrs={
            "background_label": background_label,
            "score_threshold": score_threshold,
            "nms_top_k": nms_top_k,
            "nms_threshold": nms_threshold,
            "keep_top_k": keep_top_k,
            "nms_eta": nms_eta,
            "normalized": normalized,
        },
    )
    return out, index


def ssd_loss(
    location: Variable,
    confidence: Variable,
    gt_box: Variable,
    gt_label: Variable,
    prior_box: Variable,
    prior_box_var: Variable | None = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Variable:
    """The loss of each image [N, 1]: classes of matched priors and hard negatives, places of
    matched ones.

    Raises:
        InvalidArgument: `mining_type` is not max_negative.
    """
    if mining_type != "max_negative":
        raise InvalidArgument(
            f"ssd_loss: mining_type {mining_type!r}", hint="only 'max_negative' is known"
        )
    overlap = iou_similarity(gt_box, prior_box)
    matched, distance = bipartite_match(overlap, match_type, overlap_threshold)
    label = reshape(gt_label, [*(0,) * (len(gt_label.shape) - 1), -1, 1])
    label.stop_gradient = True
    scores = flatten(confidence, axis=2)
    first = _class_loss(scores, target_assign(label, matched, None, background_label)[0])
    mined = _mined(first, matched, distance, neg_pos_ratio, neg_overlap, mining_type, sample_size)
    negative, matched = mined
    code = box_coder(prior_box, prior_box_var, gt_box, "encode_center_size")
    place, place_weight = target_assign(code, matched, None, background_label)
    classes, class_weight = target_assign(label, matched, negative, background_label)
    class_loss = _class_loss(scores, classes) * flatten(class_weight, axis=2)
    place_loss = _place_loss(location, place) * flatten(place_weight, axis=2)
    total = conf_loss_weight * class_loss + loc_loss_weight * place_loss
    loss = reduce_sum(reshape(total, [-1, prior_box.shape[0]]), dim=1, keep_dim=True)
    return elementwise_div(loss, reduce_sum(place_weight)) if normalize else loss


def _class_loss(scores: Variable, target: Variable) -> Any:
    whole = flatten(cast(target, "int64"), axis=2)
    whole.stop_gradient = True
    return softmax_with_cross_entropy(scores, whole)


def _place_loss(location: Variable, target: Variable) -> Any:
    target = flatten(target, axis=2)
    target.stop_gradient = True
    return smooth_l1(flatten(location, axis=2), target)


def _mined(
    loss: Variable, matched: Variable, distance: Variable, ratio: float, threshold: float,
    mining_type: str, sample_size: int | None,
) -> tuple[Variable, Variable]:  # fmt: skip
    helper = LayerHelper("mine_hard_examples")
    shaped = reshape(loss, [-1, matched.shape[1]])
    shaped.stop_gradient = True
    negative = helper.create_variable_for_type_inference(VarType.INT32, stop_gradient=True)
    updated = helper.create_variable_for_type_inference(matched.dtype, stop_gradient=True)
    helper.append_op(
        type="mine_hard_examples",
        inputs={"ClsLoss": shaped, "MatchIndices": matched, "MatchDist": distance},
        outputs={"NegIndices": negative, "UpdatedMatchIndices": updated},
        attrs={
            "neg_pos_ratio": ratio,
            "neg_dist_threshold": threshold,
            "mining_type": mining_type,
            "sample_size": sample_size or 0,
        },
    )
    return negative, updated
