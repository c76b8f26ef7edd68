"""Losses: functions of predictions and labels that training makes small."""

from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import Variable

from .elementwise import equal
from .helper import LayerHelper
from .nn import matmul
from .ops import square
from .picking import one_hot
from .reduction import reduce_mean, reduce_sum
from .shaping import expand, reshape, transpose
from .single import append, checked

__all__ = [
    "bpr_loss",
    "center_loss",
    "cross_entropy",
    "dice_loss",
    "huber_loss",
    "kldiv_loss",
    "label_smooth",
    "log_loss",
    "margin_rank_loss",
    "mse_loss",
    "npair_loss",
    "rank_loss",
    "sigmoid_cross_entropy_with_logits",
    "smooth_l1",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "teacher_student_sigmoid_loss",
]


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100
) -> Variable:
    """-log of the probability of the label; `input` holds probabilities.

    Labels are class numbers with a last dimension of 1, or with `soft_label` probabilities.
    """
    checked(input, "cross_entropy", "input")
    inputs = {"X": input, "Label": checked(label, "cross_entropy", "label")}
    if soft_label:
        attrs = {"soft_label": True, "ignore_index": ignore_index}
        return append("cross_entropy", inputs, attrs, slot="Y")
    helper = LayerHelper("cross_entropy2")
    made = [helper.create_variable_for_type_inference(input.dtype) for _ in range(3)]
    helper.append_op(
        type="cross_entropy2",
        inputs=inputs,
        outputs=dict(zip(("Y", "XShape", "MatchX"), made, strict=True)),
        attrs={"ignore_index": ignore_index},
    )
    return made[0]


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """-log of the softmax of `logits` at the label; with `return_softmax` a pair of loss and
    softmax.
    """
    helper = LayerHelper("softmax_with_cross_entropy")
    checked(logits, "softmax_with_cross_entropy", "logits")
    soft = helper.create_variable_for_type_inference(logits.dtype)
    loss = helper.create_variable_for_type_inference(logits.dtype)
    helper.append_op(
        type="softmax_with_cross_entropy",
        inputs={"Logits": logits, "Label": label},
        outputs={"Softmax": soft, "Loss": loss},
        attrs={
            "soft_label": soft_label,
            "ignore_index": ignore_index,
            "numeric_stable_mode": numeric_stable_mode,
            "axis": axis,
        },
    )
    return (loss, soft) if return_softmax else loss


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label) squared, element by element."""
    helper = LayerHelper("square_error_cost")
    difference = helper.create_variable_for_type_inference(input.dtype)
    inputs = {"X": input, "Y": label}
    helper.append_op(type="elementwise_sub", inputs=inputs, outputs={"Out": difference})
    squared = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type="square", inputs={"X": difference}, outputs={"Out": squared})
    return squared


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of (input - label) squared."""
    return reduce_mean(square_error_cost(input, label))


def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None
) -> Variable:
    """-label * log(input + epsilon) - (1 - label) * log(1 - input + epsilon)."""
    inputs = {"Predicted": input, "Labels": label}
    return append("log_loss", inputs, {"epsilon": epsilon}, name=name, slot="Loss")


def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    ignore_index: int = -100,
    name: str | None = None,
    normalize: bool = False,
) -> Variable:
    """The cross entropy of sigmoid(x) and the probability `label`, for each element."""
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    return append("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, attrs, name=name)


def kldiv_loss(
    x: Variable, target: Variable, reduction: str = "mean", name: str | None = None
) -> Variable:
    """target * (log(target) - x), reduced by `mean`, `batchmean`, `sum` or `none`."""
    if reduction not in ("mean", "batchmean", "sum", "none"):
        raise InvalidArgument(f"kldiv_loss: there is no reduction {reduction!r}")
    inputs = {"X": x, "Target": target}
    return append("kldiv_loss", inputs, {"reduction": reduction}, name=name, slot="Loss")


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Half the squared error; linear where the error is above `delta`."""
    return _after("huber_loss", "Residual", {"X": input, "Y": label}, {"delta": delta})


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """The absolute error, smoothed around zero, summed for each row."""
    inputs = {"X": x, "Y": y, "InsideWeight": inside_weight, "OutsideWeight": outside_weight}
    attrs = {"sigma": 1.0 if sigma is None else sigma}
    return _after("smooth_l1_loss", "Diff", inputs, attrs)


def _after(type: str, memory: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> Variable:
    """An operator whose helper output was made before its result."""
    helper = LayerHelper(type)
    x = checked(inputs["X"], type, "input")
    kept = helper.create_variable_for_type_inference(x.dtype)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type=type, inputs=inputs, outputs={memory: kept, "Out": out}, attrs=attrs)
    return out


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """Labels moved by `epsilon` towards the prior distribution (default: all classes alike)."""
    if not 0 <= epsilon <= 1:
        raise InvalidArgument(f"label_smooth: epsilon {epsilon} is not between 0 and 1")
    label.stop_gradient = True
    inputs = {"X": label} if prior_dist is None else {"X": label, "PriorDist": prior_dist}
    return append("label_smooth", inputs, {"epsilon": float(epsilon)}, name=name, dtype=dtype)


# -- ranking -----------------------------------------------------------------------------------
def rank_loss(
    label: Variable, left: Variable, right: Variable, name: str | None = None
) -> Variable:
    """The cross entropy of "left ranks above right" and `label`."""
    inputs = {"Label": label, "Left": left, "Right": right}
    return append("rank_loss", inputs, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """max(0, margin - label * (left - right)); labels are 1 and -1."""
    helper = LayerHelper("margin_rank_loss", name=name)
    out = helper.create_variable_for_type_inference(left.dtype)
    active = helper.create_variable_for_type_inference(left.dtype)
    helper.append_op(
        type="margin_rank_loss",
        inputs={"Label": label, "X1": left, "X2": right},
        outputs={"Out": out, "Activated": active},
        attrs={"margin": margin},
    )
    return out


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """How far the label's score fails to lie above all others (Bayesian personalised ranking)."""
    return append("bpr_loss", {"X": input, "Label": label}, name=name, slot="Y")


def teacher_student_sigmoid_loss(
    input: Variable,
    label: Variable,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
) -> Variable:
    """Cross entropy with a click, plus one with a teacher's score where the label has one."""
    helper = LayerHelper("teacher_student_sigmoid_loss")
    out = helper.create_variable(dtype=input.dtype)
    helper.append_op(
        type="teacher_student_sigmoid_loss",
        inputs={"X": input, "Label": label},
        outputs={"Y": out},
        attrs={
            "soft_max_lower_bound": float(soft_max_lower_bound),
            "soft_max_up_bound": float(soft_max_up_bound),
        },
    )
    return out


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: Any,
    param_attr: Any,
    update_center: bool = True,
) -> Variable:
    """Half the squared distance to the center of the label's class; centers follow at rate
    `alpha`.
    """
    helper = LayerHelper("center_loss", **locals())
    dtype = helper.input_dtype()
    centers = helper.create_parameter(param_attr, [num_classes, input.shape[1]], dtype)
    centers.stop_gradient = True
    rate = alpha if isinstance(alpha, Variable) else _rate(helper, alpha)
    diff = helper.create_variable_for_type_inference(dtype)
    loss = helper.create_variable_for_type_inference(dtype)
    helper.append_op(
        type="center_loss",
        inputs={"X": input, "Label": label, "Centers": centers, "CenterUpdateRate": rate},
        outputs={"SampleCenterDiff": diff, "Loss": loss, "CentersOut": centers},
        attrs={"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


def _rate(helper: LayerHelper, alpha: float) -> Variable:
    rate = helper.create_variable(
        name="centerloss_alpha", shape=[1], dtype="float32", persistable=True, stop_gradient=True
    )
    Constant(alpha)(rate, helper.main_program.current_block())
    return rate


# -- losses made of other layers ---------------------------------------------------------------
def dice_loss(
    input: Variable, label: Variable, epsilon: float = 0.00001, name: str | None = None
) -> Variable:
    """1 - 2 * overlap / (size of input + size of label), the mean over the batch."""
    hot = one_hot(label, depth=input.shape[-1])
    over = list(range(1, len(input.shape)))
    overlap = reduce_sum(input * hot, dim=over)
    sizes = reduce_sum(input, dim=over) + reduce_sum(hot, dim=over)
    return reduce_mean(1 - overlap * 2 / (sizes + epsilon))


def npair_loss(
    anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002
) -> Variable:
    """Softmax cross entropy of the similarities of all pairs, plus a penalty on lengths."""
    batch = labels.shape[0]
    labels = reshape(labels, shape=[batch, 1], inplace=True)
    spread = expand(labels, expand_times=[1, batch])
    alike = equal(spread, transpose(spread, perm=[1, 0])).astype("float32")
    targets = alike / reduce_sum(alike, dim=1, keep_dim=True)
    lengths = reduce_mean(reduce_sum(square(anchor), 1)) + reduce_mean(
        reduce_sum(square(positive), 1)
    )
    penalty = lengths * 0.25 * l2_reg
    similar = matmul(anchor, positive, transpose_x=False, transpose_y=True)
    loss = softmax_with_cross_entropy(logits=similar, label=targets, soft_label=True)
    return penalty + reduce_mean(reduce_sum(targets * loss, 0))
