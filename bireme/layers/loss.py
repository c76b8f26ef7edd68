"""Losses: functions of predictions and labels that training makes small."""

from typing import Any

from bireme.ir import Variable

from .helper import LayerHelper
from .single import append, checked

__all__ = [
    "cross_entropy",
    "mse_loss",
    "softmax_with_cross_entropy",
    "square_error_cost",
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
    """-log of the softmax of `logits` at the label; with `return_softmax` a pair of loss and softmax."""
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
    from .reduction import reduce_mean

    return reduce_mean(square_error_cost(input, label))
