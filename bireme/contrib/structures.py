"""Layers over pairs of texts and over trees, and two operators fused into one."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable
from bireme.layers.helper import LayerHelper
from bireme.layers.single import append, checked

__all__ = [
    "fused_elemwise_activation",
    "match_matrix_tensor",
    "sequence_topk_avg_pooling",
    "tree_conv",
    "var_conv_2d",
]


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: Any,
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """`["relu", "elementwise_add"]` is relu(x + y), `["elementwise_add", "relu"]` x + relu(y)."""
    names = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    if len(names) != 2:
        raise InvalidArgument(f"functor_list {names}", hint="give two names")
    attrs = {
        "axis": axis,
        "scale": scale,
        "save_intermediate_out": save_intermediate_out,
        "functor_list": names,
    }
    inputs = {"X": checked(x, "fused_elemwise_activation", "x"), "Y": y}
    extra = {"IntermediateOut": None}
    return append("fused_elemwise_activation", inputs, attrs, extra=extra)


def match_matrix_tensor(
    x: Variable,
    y: Variable,
    channel_num: int,
    act: Any = None,
    param_attr: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """(products of every word of a text with every word of its partner, one matrix a channel, flat
    [elements, 1]; the words of x times the weight).
    """
    helper = LayerHelper("match_matrix_tensor", **locals())
    width = checked(x, "match_matrix_tensor", "x").shape[1], y.shape[1]
    weight = helper.create_parameter(helper.param_attr, [width[0], channel_num, width[1]], dtype)
    out = helper.create_variable_for_type_inference(dtype)
    turned = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    helper.append_op(
        type="match_matrix_tensor",
        inputs={"X": x, "Y": y, "W": weight},
        outputs={"Out": out, "Tmp": turned},
        attrs={"dim_t": channel_num},
    )
    return helper.append_activation(out), turned


def var_conv_2d(
    input: Variable,
    row: Variable,
    col: Variable,
    input_channel: int,
    output_channel: int,
    filter_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    param_attr: Any = None,
    act: Any = None,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """A convolution over matrices as high and as wide as sequences of `row` and `col` are long."""
    helper = LayerHelper("var_conv_2d", **locals())
    kernel, steps = (_pair(value) for value in (filter_size, stride))
    shape = [output_channel, input_channel * kernel[0] * kernel[1]]
    weight = helper.create_parameter(helper.param_attr, shape, dtype)
    out = helper.create_variable_for_type_inference(dtype)
    columns = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    helper.append_op(
        type="var_conv_2d",
        inputs={"X": input, "ROW": row, "COLUMN": col, "W": weight},
        outputs={"Out": out, "Col": columns},
        attrs={
            "InputChannel": input_channel,
            "OutputChannel": output_channel,
            "StrideH": steps[0],
            "StrideW": steps[1],
            "KernelH": kernel[0],
            "KernelW": kernel[1],
        },
    )
    return helper.append_activation(out)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def sequence_topk_avg_pooling(
    input: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int
) -> Variable:
    """For each row of each matrix the sums of its greatest k elements over k [rows, channels x
    len(topks)].
    """
    inputs = {"X": input, "ROW": row, "COLUMN": col}
    attrs = {"topks": list(topks), "channel_num": channel_num}
    return append("sequence_topk_avg_pooling", inputs, attrs, extra={"pos": "int32"})


def tree_conv(
    nodes_vector: Variable,
    edge_set: Variable,
    output_size: int,
    num_filters: int = 1,
    max_depth: int = 2,
    act: Any = "tanh",
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """A convolution over trees: nodes [N, nodes, width], edges (parent, child) from 1 [N, edges,
    2], to [N, nodes, outputs, filters].
    """
    helper = LayerHelper("tree_conv", **locals())
    kind = checked(nodes_vector, "tree_conv", "nodes_vector").dtype
    shape = [nodes_vector.shape[2], 3, output_size, num_filters]
    weight = helper.create_parameter(helper.param_attr, shape, kind)
    out = helper.create_variable_for_type_inference(kind)
    helper.append_op(
        type="tree_conv",
        inputs={"NodesVector": nodes_vector, "EdgeSet": edge_set, "Filter": weight},
        outputs={"Out": out},
        attrs={"max_depth": max_depth},
    )
    return helper.append_activation(helper.append_bias_op(out) if helper.bias_attr else out)
