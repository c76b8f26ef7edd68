"""Losses over many classes: noise contrast, a tree of classes, sampled softmax."""

from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.initializer import NumpyArrayInitializer
from bireme.ir import Variable
from bireme.param_attr import ParamAttr

from .helper import LayerHelper
from .single import checked

__all__ = [
    "hsigmoid",
    "nce",
    "sampled_softmax_with_cross_entropy",
]

_SAMPLERS = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Any = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Noise contrastive estimation: the label's class is told from `num_neg_samples` drawn ones.

    Classes are drawn alike, by the log-uniform law, or with the probabilities `custom_dist`.
    """
    helper = LayerHelper("nce", **locals())
    if sampler not in _SAMPLERS:
        raise InvalidArgument(
            f"nce: there is no sampler {sampler!r}", hint="uniform, log_uniform, custom_dist"
        )
    dtype = checked(input, "nce", "input").dtype
    size = [num_total_classes, input.shape[1]]
    weight = helper.create_parameter(helper.param_attr, size, dtype)
    inputs = {"Input": input, "Label": label, "Weight": weight, "SampleWeight": sample_weight}
    if helper.bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(
            helper.bias_attr, [num_total_classes, 1], dtype, is_bias=True
        )
    if sampler == "custom_dist":
        inputs.update(_alias_tables(helper, custom_dist, num_total_classes))
    drawn = 10 if num_neg_samples is None else int(num_neg_samples)
    cost, logits = (helper.create_variable_for_type_inference(dtype) for _ in range(2))
    labels = helper.create_variable_for_type_inference(label.dtype)
    helper.append_op(
        type="nce",
        inputs=inputs,
        outputs={"Cost": cost, "SampleLogits": logits, "SampleLabels": labels},
        attrs={
            "num_total_classes": int(num_total_classes),
            "num_neg_samples": drawn,
            "seed": seed,
            "sampler": _SAMPLERS[sampler],
            "is_sparse": is_sparse,
            "remote_prefetch": is_sparse,
            "custom_neg_classes": [],
            "epmap": [],
            "table_names": [],
            "height_sections": [],
            "trainer_id": 0,
        },
    )
    return cost / (drawn + 1)


def _alias_tables(helper: LayerHelper, custom_dist: Any, classes: int) -> dict[str, Variable]:
    """The distribution, and Walker's tables for drawing from it in constant time."""
    if custom_dist is None or len(custom_dist) != classes:
        raise InvalidArgument(f"nce: custom_dist must hold {classes} probabilities")
    alias, share = [-1] * classes, [p * classes for p in custom_dist]
    large = [i for i, p in enumerate(share) if p > 1]
    small = [i for i, p in enumerate(share) if p < 1]
    while large and small:
        rich, poor = large.pop(0), small.pop(0)
        alias[poor] = rich
        share[rich] += share[poor] - 1
        (large if share[rich] > 1 else small if share[rich] < 1 else []).append(rich)
    for rest in (*large, *small):
        share[rest] = 1.0
    tables = {
        "CustomDistProbs": np.array(custom_dist, dtype="float32"),
        "CustomDistAlias": np.array(alias, dtype="int32"),
        "CustomDistAliasProbs": np.array(share, dtype="float32"),
    }
    return {slot: _constant_parameter(helper, table) for slot, table in tables.items()}


def _constant_parameter(helper: LayerHelper, values: Any) -> Variable:
    made: Variable = helper.create_parameter(
        ParamAttr(), values.shape, values.dtype, default_initializer=NumpyArrayInitializer(values)
    )
    made.stop_gradient = True
    return made


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """The loss of finding the label's class by turns from the root of a tree of classes.

    The tree is a complete binary one, or the one whose ways `path_table` and `path_code` give.
    """
    helper = LayerHelper("hierarchical_sigmoid", **locals())
    if num_classes < 2 and not is_custom:
        raise InvalidArgument(f"hsigmoid: a tree needs two classes or more, not {num_classes}")
    if is_custom and (path_table is None or path_code is None):
        raise InvalidArgument("hsigmoid: a custom tree needs path_table and path_code")
    dtype = helper.input_dtype()
    inner = num_classes if is_custom else num_classes - 1
    weight = helper.create_parameter(helper.param_attr, [inner, input.shape[1]], dtype)
    inputs = {
        "X": input,
        "W": weight,
        "PathTable": path_table,
        "PathCode": path_code,
        "Label": label,
    }
    out, before = (helper.create_variable_for_type_inference(dtype) for _ in range(2))
    if helper.bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(helper.bias_attr, [inner, 1], dtype, is_bias=True)
    helper.append_op(
        type="hierarchical_sigmoid",
        inputs=inputs,
        outputs={"Out": out, "PreOut": before, "W_Out": weight},
        attrs={
            "num_classes": num_classes,
            "is_sparse": is_sparse,
            "remote_prefetch": is_sparse,
        },
    )
    return out


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """Softmax cross entropy over the true classes and `num_samples` drawn ones."""
    helper = LayerHelper("sample_logits")
    dtype = logits.dtype
    kinds = {
        "Samples": "int64",
        "Probabilities": dtype,
        "SampledLogits": dtype,
        "SampledLabels": "int64",
        "soft": dtype,
        "LogitsDim": dtype,
        "LabelsDim": label.dtype,
        "loss": dtype,
        "softmax": dtype,
    }
    made = {k: helper.create_variable_for_type_inference(v) for k, v in kinds.items()}
    sampled = (
        "Samples",
        "Probabilities",
        "SampledLogits",
        "SampledLabels",
        "LogitsDim",
        "LabelsDim",
    )
    helper.append_op(
        type="sample_logits",
        inputs={
            "Logits": logits,
            "Labels": label,
            "CustomizedSamples": customized_samples,
            "CustomizedProbabilities": customized_probabilities,
        },
        outputs={slot: made[slot] for slot in sampled},
        attrs={
            "use_customized_samples": use_customized_samples,
            "uniq": True,
            "remove_accidental_hits": remove_accidental_hits,
            "num_samples": num_samples,
            "seed": seed,
        },
    )
    helper.append_op(
        type="one_hot",
        inputs={"X": made["SampledLabels"]},
        outputs={"Out": made["soft"]},
        attrs={"depth": num_samples + 1},
    )
    helper.append_op(
        type="softmax_with_cross_entropy",
        inputs={"Logits": made["SampledLogits"], "Label": made["soft"]},
        outputs={"Softmax": made["softmax"], "Loss": made["loss"]},
        attrs={"ignore_index": 0, "soft_label": True, "numeric_stable_mode": False},
    )
    return made["loss"] / num_true
