"""Layers that normalise: over the batch, a layer, groups, instances, channels, and running
summaries.
"""

from collections.abc import Callable
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Constant, Normal
from bireme.ir import HALVES, Variable, VarType
from bireme.param_attr import ParamAttr

from .helper import LayerHelper

__all__ = [
    "batch_norm",
    "data_norm",
    "group_norm",
    "inplace_abn",
    "instance_norm",
    "layer_norm",
    "lrn",
    "spectral_norm",
]


def batch_norm(
    input: Variable,
    act: Any = None,
    is_test: bool = False,
    momentum: Any = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Variable:
    """Batch normalisation (arXiv 1502.03167) with running mean and variance per channel.

    The running statistics are parameters that do not train; test programs and `use_global_stats`
    read them.
    """
    helper = LayerHelper("batch_norm", **locals())
    return helper.append_activation(_over_batch(helper, input if in_place else None))


def inplace_abn(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: Any = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Variable:
    """`input`, overwritten by its batch normalisation and an activation that can be undone, which
    saves memory (arXiv 1712.02616): identity, leaky_relu or elu, with the factor `act_alpha`.
    """
    helper = LayerHelper("inplace_abn", **locals())
    if act not in (None, "identity", "leaky_relu", "elu"):
        raise InvalidArgument(
            f"inplace_abn: act is {act!r}", hint="one of identity, leaky_relu and elu, or None"
        )
    return _over_batch(helper, input, activation=act, alpha=act_alpha, use_sync_bn=False)


def _over_batch(helper: LayerHelper, out: Variable | None, **more: Any) -> Variable:
    """The operator of the helper's layer, with its parameters; `out` or a new variable."""
    given = helper.kwargs
    input, momentum = given["input"], given["momentum"]
    dtype = VarType.FP32 if input.dtype in HALVES else input.dtype
    shape = [input.shape[-1 if given["data_layout"] == "NHWC" else 1]]
    scale = helper.create_parameter(
        helper.param_attr, shape, dtype, default_initializer=Constant(1.0)
    )
    bias = helper.create_parameter(helper.bias_attr, shape, dtype, is_bias=True)
    if scale is None or bias is None:
        raise InvalidArgument(
            f"{helper.layer_type} needs its scale and bias", hint="do not set them to False"
        )
    average = given["do_model_average_for_mean_and_var"]
    mean = _running(helper, given["moving_mean_name"], 0.0, shape, dtype, average)
    variance = _running(helper, given["moving_variance_name"], 1.0, shape, dtype, average)
    saved_mean = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    saved_variance = helper.create_variable_for_type_inference(dtype, stop_gradient=True)
    out = out or helper.create_variable_for_type_inference(input.dtype)
    inputs: dict[str, Any] = {"X": input, "Scale": scale, "Bias": bias}
    inputs.update(Mean=mean, Variance=variance)
    names = ("epsilon", "is_test", "data_layout", "use_global_stats")
    attrs: dict[str, Any] = {**{name: given[name] for name in names}, **more}
    attrs["trainable_statistics"] = False
    if isinstance(momentum, Variable):
        inputs["MomentumTensor"] = momentum
    else:
        attrs["momentum"] = momentum
    helper.append_op(
        type=helper.layer_type,
        inputs=inputs,
        outputs={
            "Y": out,
            "MeanOut": mean,
            "VarianceOut": variance,
            "SavedMean": saved_mean,
            "SavedVariance": saved_variance,
        },
        attrs=attrs,
    )
    return out


def _running(
    helper: LayerHelper, name: str | None, start: float, shape: Any, dtype: Any, average: bool
) -> Variable:
    attr = ParamAttr(
        name=name, initializer=Constant(start), trainable=False, do_model_average=average
    )
    found: Variable = helper.create_parameter(attr, shape, dtype)
    found.stop_gradient = True
    return found


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """Normalisation over the dimensions from `begin_norm_axis` on (arXiv 1607.06450)."""
    helper = LayerHelper("layer_norm", **locals())
    inputs: dict[str, Any] = {"X": input}
    count = 1
    for n in input.shape[begin_norm_axis:]:
        count *= n
    if scale:
        inputs["Scale"] = helper.create_parameter(
            helper.param_attr, [count], input.dtype, default_initializer=Constant(1.0)
        )
    if shift:
        inputs["Bias"] = helper.create_parameter(
            helper.bias_attr, [count], input.dtype, is_bias=True
        )
    attrs = {"epsilon": epsilon, "begin_norm_axis": begin_norm_axis}
    return _with_statistics(helper, inputs, ("Mean", "Variance"), attrs)


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalisation over groups of channels (arXiv 1803.08494); scale, bias only if asked for."""
    helper = LayerHelper("group_norm", **locals())
    channels = [input.shape[-1 if data_layout == "NHWC" else 1]]
    inputs: dict[str, Any] = {"X": input}
    if param_attr:
        inputs["Scale"] = helper.create_parameter(
            helper.param_attr, channels, input.dtype, default_initializer=Constant(1.0)
        )
    if bias_attr:
        inputs["Bias"] = helper.create_parameter(
            helper.bias_attr, channels, input.dtype, is_bias=True
        )
    attrs = {"epsilon": epsilon, "groups": groups, "data_layout": data_layout}
    return _with_statistics(helper, inputs, ("Mean", "Variance"), attrs, helper.create_variable)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Variable:
    """Normalisation of every channel of every sample by itself (arXiv 1607.08022)."""
    helper = LayerHelper("instance_norm", **locals())
    channels = [input.shape[1]]
    scale = helper.create_parameter(
        helper.param_attr, channels, input.dtype, default_initializer=Constant(1.0)
    )
    bias = helper.create_parameter(helper.bias_attr, channels, input.dtype, is_bias=True)
    inputs = {"X": input, "Scale": scale, "Bias": bias}
    return _with_statistics(helper, inputs, ("SavedMean", "SavedVariance"), {"epsilon": epsilon})


def _with_statistics(
    helper: LayerHelper,
    inputs: dict[str, Any],
    statistics: tuple[str, ...],
    attrs: dict[str, Any],
    create: Callable[..., Variable] | None = None,
) -> Variable:
    """`create` says how the original names the outputs of this layer."""
    create = create or helper.create_variable_for_type_inference
    dtype = inputs["X"].dtype
    outputs = {slot: create(dtype=dtype, stop_gradient=True) for slot in statistics}
    outputs["Y"] = create(dtype=dtype)
    helper.append_op(type=helper.layer_type, inputs=inputs, outputs=outputs, attrs=attrs)
    return helper.append_activation(outputs["Y"])


def data_norm(
    input: Variable,
    act: Any = None,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Variable:
    """Normalisation by summaries of all samples seen; `param_attr` is a dict of their start values.

    The summaries are parameters `<name>.batch_size`, `.batch_sum` and `.batch_square_sum`; without
    a name they are `dn.*`, which several layers then share.
    """
    helper = LayerHelper("data_norm", **locals())
    start = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4}
    start.update(param_attr if isinstance(param_attr, dict) else {})
    base = name or "dn"
    shape = [input.shape[-1 if data_layout == "NHWC" else 1]]

    def summary(suffix: str, value: float) -> Variable:
        attr = ParamAttr(name=f"{base}.{suffix}", initializer=Constant(float(value)))
        found: Variable = helper.create_parameter(attr, shape, input.dtype)
        return found

    inputs: dict[str, Any] = {
        "X": input,
        "BatchSize": summary("batch_size", start["batch_size"]),
        "BatchSum": summary("batch_sum", start["batch_sum"]),
        "BatchSquareSum": summary("batch_square_sum", start["batch_square"]),
    }
    if enable_scale_and_shift:
        inputs["scale_w"] = summary("scale_w", start.get("scale_w", 1.0))
        inputs["bias"] = summary("bias", start.get("bias", 0.0))
    attrs = {
        "epsilon": epsilon,
        "data_layout": data_layout,
        "sync_stats": sync_stats,
        "summary_decay_rate": summary_decay_rate,
        "slot_dim": slot_dim,
        "enable_scale_and_shift": enable_scale_and_shift,
    }
    return _with_statistics(helper, inputs, ("Means", "Scales"), attrs, helper.create_variable)


def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 0.0001,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Local response normalisation over `n` neighbouring channels."""
    if len(input.shape) != 4:
        raise InvalidArgument(f"lrn needs 4 axes, {input.name!r} has {list(input.shape)}")
    helper = LayerHelper("lrn", **locals())
    mid = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    out = helper.create_variable_for_type_inference(input.dtype)
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": data_format}
    outputs = {"Out": out, "MidOut": mid}
    helper.append_op(type="lrn", inputs={"X": input}, outputs=outputs, attrs=attrs)
    return out


def spectral_norm(
    weight: Variable,
    dim: int = 0,
    power_iters: int = 1,
    eps: float = 1e-12,
    name: str | None = None,
) -> Variable:
    """`weight` divided by its largest singular value, by power iteration (arXiv 1802.05957)."""
    helper = LayerHelper("spectral_norm", **locals())
    height = weight.shape[dim]
    width = 1
    for i, n in enumerate(weight.shape):
        width *= n if i != dim else 1
    vectors = {}
    for slot, size in (("U", height), ("V", width)):
        attr = ParamAttr(initializer=Normal(0.0, 1.0))
        vectors[slot] = helper.create_parameter(attr, [size], weight.dtype)
        vectors[slot].stop_gradient = True
    out = helper.create_variable(dtype=weight.dtype)
    helper.append_op(
        type="spectral_norm",
        inputs={"Weight": weight, **vectors},
        outputs={"Out": out},
        attrs={"dim": dim, "power_iters": power_iters, "eps": eps},
    )
    return out
