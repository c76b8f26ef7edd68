"""Layers that label sequences and judge labels: CRF, CTC, chunks, edit distance."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, default_main_program
from bireme.param_attr import ParamAttr

from .helper import LayerHelper
from .nn import topk
from .shaping import squeeze
from .single import append, checked

__all__ = [
    "chunk_eval",
    "crf_decoding",
    "ctc_greedy_decoder",
    "edit_distance",
    "linear_chain_crf",
    "warpctc",
]


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None
) -> Variable:
    """The negative log-likelihood of each sequence of labels under a linear-chain CRF."""
    helper = LayerHelper("linear_chain_crf", **locals())
    checked(input, "linear_chain_crf", "input")
    tags = input.shape[1 if length is None else 2]
    dtype = helper.input_dtype()
    transition = helper.create_parameter(helper.param_attr, [tags + 2, tags], dtype)
    alpha, emission, moves, loss = (
        helper.create_variable_for_type_inference(dtype) for _ in range(4)
    )
    inputs = {"Emission": [input], "Transition": transition, "Label": [label]}
    if length is not None:
        inputs["Length"] = [length]
    helper.append_op(
        type="linear_chain_crf",
        inputs=inputs,
        outputs={
            "Alpha": [alpha],
            "EmissionExps": [emission],
            "TransitionExps": moves,
            "LogLikelihood": loss,
        },
    )
    return loss


def crf_decoding(
    input: Variable, param_attr: Any, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """The likeliest labels under the CRF whose parameter `param_attr` names.

    With `label`, ones where they are right.
    """
    attr = ParamAttr._to_attr(param_attr)
    block = default_main_program().global_block()
    if attr is None or attr.name is None or not block.has_var(attr.name):
        raise InvalidArgument(
            "crf_decoding needs the ParamAttr of a CRF's transitions",
            hint="give linear_chain_crf and crf_decoding ParamAttr(name='crfw')",
        )
    inputs = {"Emission": [checked(input, "crf_decoding", "input")]}
    inputs["Transition"] = [block.var(attr.name)]
    if label is not None:
        inputs["Label"] = [label]
    if length is not None:
        inputs["Length"] = [length]
    return append("crf_decoding", inputs, slot="ViterbiPath", dtype="int64")


def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, ...]:
    """(precision, recall, F1, found chunks, true chunks, correct chunks)."""
    helper = LayerHelper("chunk_eval", **locals())
    outs = [helper.create_variable_for_type_inference("float32") for _ in range(3)]
    outs += [helper.create_variable_for_type_inference("int64") for _ in range(3)]
    slots = "Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks".split()
    inputs = {"Inference": [input], "Label": [label]}
    if seq_length is not None:
        inputs["SeqLength"] = [seq_length]
    helper.append_op(
        type="chunk_eval",
        inputs=inputs,
        outputs={slot: [out] for slot, out in zip(slots, outs, strict=True)},
        attrs={
            "num_chunk_types": num_chunk_types,
            "chunk_scheme": chunk_scheme,
            "excluded_chunk_types": list(excluded_chunk_types or []),
        },
    )
    return tuple(outs)


def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """The CTC loss of each sequence; `input` is not normalised."""
    helper = LayerHelper("warpctc", **locals())
    inputs = {"Logits": [checked(input, "warpctc", "input")], "Label": [label]}
    if (input_length is None) != (label_length is None):
        raise InvalidArgument("give both input_length and label_length, or neither")
    if input_length is not None and label_length is not None:
        inputs["LogitsLength"] = [input_length]
        inputs["LabelLength"] = [label_length]
    loss = helper.create_variable_for_type_inference(input.dtype)
    grad = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="warpctc",
        inputs=inputs,
        outputs={"WarpCTCGrad": [grad], "Loss": [loss]},
        attrs={"blank": blank, "norm_by_times": norm_by_times},
    )
    return loss


def ctc_greedy_decoder(
    input: Variable,
    blank: int,
    input_length: Variable | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Any:
    """The likeliest label of every step, without repetitions and blanks."""
    checked(input, "ctc_greedy_decoder", "input")
    helper = LayerHelper("ctc_greedy_decoder", **locals())
    _, best = topk(input, k=1)
    out = helper.create_variable_for_type_inference("int64")
    attrs: dict[str, Any] = {"merge_repeated": True, "blank": blank}
    inputs = {"Input": [best]}
    outputs = {"Output": [out]}
    if input_length is None:
        helper.append_op(type="ctc_align", inputs=inputs, outputs=outputs, attrs=attrs)
        return out
    inputs = {"Input": [squeeze(best, [2])], "InputLength": [input_length]}
    outputs["OutputLength"] = [helper.create_variable_for_type_inference("int64")]
    attrs["padding_value"] = padding_value
    helper.append_op(type="ctc_align", inputs=inputs, outputs=outputs, attrs=attrs)
    return out, outputs["OutputLength"][0]


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Changes from each sequence of `input` to that of `label`, and the number of sequences."""
    helper = LayerHelper("edit_distance", **locals())
    if ignored_tokens:
        tokens = {"tokens": list(ignored_tokens)}
        input, label = (
            append("sequence_erase", {"X": [v]}, tokens, layer="edit_distance", dtype="int64")
            for v in (input, label)
        )
    inputs = {"Hyps": [input], "Refs": [label]}
    if input_length is not None and label_length is not None:
        inputs["HypsLength"] = [input_length]
        inputs["RefsLength"] = [label_length]
    out = helper.create_variable_for_type_inference("int64")
    count = helper.create_variable_for_type_inference("int64")
    helper.append_op(
        type="edit_distance",
        inputs=inputs,
        outputs={"Out": [out], "SequenceNum": [count]},
        attrs={"normalized": normalized},
    )
    return out, count
