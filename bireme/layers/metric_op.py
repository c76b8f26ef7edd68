"""Measures of quality as layers."""

from bireme.initializer import Constant
from bireme.ir import Variable

from .helper import LayerHelper
from .nn import topk

__all__ = [
    "accuracy",
    "auc",
    "mean_iou",
]


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """The share of rows whose label is among the `k` best classes."""
    helper = LayerHelper("accuracy")
    values, indices = topk(input, k=k)
    out = helper.create_variable_for_type_inference("float32")
    if correct is None:
        correct = helper.create_variable_for_type_inference("int32")
    if total is None:
        total = helper.create_variable_for_type_inference("int32")
    helper.append_op(
        type="accuracy",
        inputs={"Out": values, "Indices": indices, "Label": label},
        outputs={"Accuracy": out, "Correct": correct, "Total": total},
    )
    return out


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the curve: of everything seen, of the last `slide_steps` batches, and the
    four counters.
    """
    helper = LayerHelper("auc")
    whole = helper.create_variable_for_type_inference("float64")
    recent = helper.create_variable_for_type_inference("float64")
    size = num_thresholds + 1
    slid = [(1 + slide_steps) * size + 1] if slide_steps else [1, size]
    states = [_counter(helper, shape) for shape in (slid, slid, [1, size], [1, size])]
    for out, (pos, neg), steps in ((recent, states[:2], slide_steps), (whole, states[2:], 0)):
        helper.append_op(
            type="auc",
            inputs={"Predict": input, "Label": label, "StatPos": pos, "StatNeg": neg},
            outputs={"AUC": out, "StatPosOut": pos, "StatNegOut": neg},
            attrs={"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps},
        )
    return whole, recent, states


def _counter(helper: LayerHelper, shape: list[int]) -> Variable:
    block = helper.main_program.global_block()
    var = block.create_var(persistable=True, dtype="int64", shape=shape)
    helper.set_variable_initializer(var, Constant(0.0))
    return var


def mean_iou(
    input: Variable, label: Variable, num_classes: int
) -> tuple[Variable, Variable, Variable]:
    """The mean overlap of predicted and true classes, and the wrong and correct counts per
    class.
    """
    helper = LayerHelper("mean_iou", input=input)
    out = helper.create_variable_for_type_inference("float32")
    wrong = helper.create_variable_for_type_inference("int32")
    correct = helper.create_variable_for_type_inference("int32")
    helper.append_op(
        type="mean_iou",
        inputs={"Predictions": input, "Labels": label},
        outputs={"OutMeanIou": out, "OutWrong": wrong, "OutCorrect": correct},
        attrs={"num_classes": num_classes},
    )
    return out, wrong, correct
