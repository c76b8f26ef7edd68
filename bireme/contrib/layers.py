"""What scripts know as `fluid.contrib.layers`."""

from collections.abc import Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import Variable, VarType, to_dtype, unique_name
from bireme.layers.helper import LayerHelper
from bireme.layers.single import append
from bireme.layers.ssd import nms_with_index
from bireme.param_attr import ParamAttr

from .rnn import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm
from .structures import (
    fused_elemwise_activation,
    match_matrix_tensor,
    sequence_topk_avg_pooling,
    tree_conv,
    var_conv_2d,
)

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "basic_gru",
    "basic_lstm",
    "ctr_metric_bundle",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "match_matrix_tensor",
    "multiclass_nms2",
    "partial_concat",
    "partial_sum",
    "sequence_topk_avg_pooling",
    "shuffle_batch",
    "tdm_child",
    "tdm_sampler",
    "tree_conv",
    "var_conv_2d",
]


def multiclass_nms2(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Rows (label, score, box) of the boxes that are left; with `return_index` their places."""
    out, index = nms_with_index(
        bboxes, scores, score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta,
        background_label, name,
    )  # fmt: skip
    return (out, index) if return_index else out


def shuffle_batch(x: Variable, seed: Any = None) -> Variable:
    """The rows of `x` in random order; the gradient finds its way back."""
    helper = LayerHelper("shuffle_batch")
    out = helper.create_variable_for_type_inference(x.dtype)
    order = helper.create_variable_for_type_inference(VarType.INT64, stop_gradient=True)
    if not isinstance(seed, Variable):
        start = 0 if seed is None else int(seed)
        seed = layers.create_global_var(
            name=unique_name.generate("shuffle_batch_seed"),
            shape=[1], value=start, dtype="int64", persistable=True,
        )  # fmt: skip
    helper.append_op(
        type="shuffle_batch",
        inputs={"X": x, "Seed": seed},
        outputs={"Out": out, "ShuffleIdx": order, "SeedOut": seed},
    )
    return out


def partial_concat(input: Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """The columns from `start_index` on, `length` of them, of every input side by side."""
    attrs = {"start_index": start_index, "length": length}
    return append("partial_concat", {"X": _listed(input)}, attrs)


def partial_sum(input: Sequence[Variable], start_index: int = 0, length: int = -1) -> Variable:
    """The sum of the columns from `start_index` on, `length` of them, of every input."""
    attrs = {"start_index": start_index, "length": length}
    return append("partial_sum", {"X": _listed(input)}, attrs)


def _listed(input: Any) -> list[Variable]:
    return list(input) if isinstance(input, list | tuple) else [input]


def fused_embedding_seq_pool(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Variable:
    """The sum of the rows of a table that the ids of each sequence name."""
    if combiner != "sum":
        raise InvalidArgument(f"combiner {combiner!r}", hint="only 'sum' is known")
    rows = layers.embedding(input, list(size), is_sparse, False, padding_idx, param_attr, dtype)
    return layers.sequence_pool(rows, "sum")


def tdm_child(
    x: Variable, node_nums: int, child_nums: int, param_attr: Any = None, dtype: Any = "int32"
) -> tuple[Variable, Variable]:
    """(the children of each node, which of them are leaves) of a tree in a parameter
    [node_nums, 3 + child_nums] with rows (item, layer, parent, children ...).
    """
    helper = LayerHelper("tdm_child", param_attr=param_attr)
    kind = to_dtype(dtype)
    tree = helper.create_parameter(
        helper.param_attr, [node_nums, 3 + child_nums], "int32", default_initializer=Constant(0)
    )
    tree.stop_gradient = True
    child = helper.create_variable_for_type_inference(kind, stop_gradient=True)
    leaf = helper.create_variable_for_type_inference(kind, stop_gradient=True)
    helper.append_op(
        type="tdm_child",
        inputs={"X": x, "TreeInfo": tree},
        outputs={"Child": child, "LeafMask": leaf},
        attrs={"child_nums": child_nums, "dtype": int(kind)},
    )
    return child, leaf


def tdm_sampler(
    x: Variable,
    neg_samples_num_list: Sequence[int],
    layer_node_num_list: Sequence[int],
    leaf_node_num: int,
    tree_travel_attr: Any = None,
    tree_layer_attr: Any = None,
    output_positive: bool = True,
    output_list: bool = True,
    seed: int = 0,
    tree_dtype: Any = "int32",
    dtype: Any = "int32",
) -> Any:
    """(nodes, labels, masks) for each leaf: on every layer the node on its way and some others;
    a list with one entry for each layer if `output_list`.
    """
    if len(neg_samples_num_list) != len(layer_node_num_list):
        raise InvalidArgument("tdm_sampler: one number of negatives for each layer")
    helper = LayerHelper("tdm_sampler")
    layer_count, nodes = len(layer_node_num_list), sum(layer_node_num_list)
    zero = Constant(0)
    travel = helper.create_parameter(
        ParamAttr._to_attr(tree_travel_attr), [leaf_node_num, layer_count], tree_dtype,
        default_initializer=zero,
    )  # fmt: skip
    layer = helper.create_parameter(
        ParamAttr._to_attr(tree_layer_attr), [nodes, 1], tree_dtype, default_initializer=zero
    )
    kind = to_dtype(dtype)
    made = [helper.create_variable_for_type_inference(kind, stop_gradient=True) for _ in range(3)]
    offsets = [sum(layer_node_num_list[:i]) for i in range(layer_count + 1)]
    helper.append_op(
        type="tdm_sampler",
        inputs={"X": x, "Travel": travel, "Layer": layer},
        outputs=dict(zip(("Out", "Labels", "Mask"), made, strict=True)),
        attrs={
            "neg_samples_num_list": list(neg_samples_num_list),
            "output_positive": output_positive,
            "layer_offset_lod": offsets,
            "seed": seed,
            "dtype": int(kind),
        },
    )
    if not output_list:
        return tuple(made)
    widths = [n + int(output_positive) for n in neg_samples_num_list]
    return tuple(layers.split(part, widths, dim=1) for part in made)


def ctr_metric_bundle(input: Variable, label: Variable) -> tuple[Variable, ...]:
    """Running sums over all batches: (squared error, absolute error, predictions, sigmoids of
    predictions, positives, samples); `label` is a float32 column like `input`.
    """
    error = layers.elementwise_sub(input, label)
    ones = layers.fill_constant_batch_size_like(label, [-1, 1], "float32", 1.0)
    parts = {
        "local_sqrerr": layers.square(error),
        "local_abserr": layers.abs(error),
        "local_prob": input,
        "local_q": layers.sigmoid(input),
        "local_pos_num": label,
        "local_ins_num": ones,
    }
    sums = []
    for name, part in parts.items():
        total = layers.create_global_var(
            name=unique_name.generate(name), shape=[1], value=0.0, dtype="float32", persistable=True
        )
        layers.assign(layers.elementwise_add(total, layers.reduce_sum(part)), total)
        sums.append(total)
    return tuple(sums)
