"""The names of Paddle 2.x that its tutorials of static, distributed training use.

Fluid 1.8.5 knows none of them; `names` finds them beside its own.
"""

__all__ = ["NAMES", "is_module"]

_MINE = "bireme.fleet.api.v2_functions"
_LAYERS = "bireme.layers"


def _same(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_TABLE: dict[str, dict[str, str]] = {
    "paddle": {
        **_same(_MINE, "enable_static disable_static in_dynamic_mode"),
        **_same("bireme", "CPUPlace CUDAPlace CUDAPinnedPlace ParamAttr is_compiled_with_cuda"),
        **_same("bireme", "get_flags set_flags save load"),
        **_same(_LAYERS, "reshape transpose concat split matmul mean cast argmax sqrt abs exp log"),
        "add": f"{_LAYERS}:elementwise_add",
        "subtract": f"{_LAYERS}:elementwise_sub",
        "multiply": f"{_LAYERS}:elementwise_mul",
        "divide": f"{_LAYERS}:elementwise_div",
        "set_device": f"{_MINE}:set_device",
    },
    "paddle.static": {
        **_same(
            "bireme",
            "Program Executor BuildStrategy ExecutionStrategy CompiledProgram ParallelExecutor "
            "Variable data default_main_program default_startup_program program_guard name_scope "
            "global_scope scope_guard cpu_places cuda_places append_backward gradients "
            "WeightNormParamAttr device_guard save load",
        ),
        **_same("bireme.io", "load_program_state set_program_state"),
        **_same(_LAYERS, "accuracy auc Print py_func create_global_var create_parameter"),
    },
    "paddle.static.nn": {
        **_same(_MINE, "fc batch_norm"),
        **_same(
            _LAYERS,
            "embedding conv2d conv2d_transpose conv3d layer_norm group_norm instance_norm prelu "
            "cond case switch_case while_loop nce row_conv spectral_norm py_func create_parameter "
            "sequence_conv sequence_pool sequence_softmax sequence_expand sequence_first_step "
            "sequence_last_step",
        ),
        "embedding": "bireme:embedding",
    },
    "paddle.nn.functional": {
        **_same(_MINE, "cross_entropy mse_loss"),
        **_same(
            _LAYERS,
            "relu softmax sigmoid tanh dropout one_hot pad square_error_cost log_softmax gelu elu "
            "leaky_relu relu6 swish softmax_with_cross_entropy",
        ),
    },
    "paddle.nn.initializer": _same("bireme.initializer", "Constant Normal Uniform Xavier")
    | {
        "TruncatedNormal": "bireme.initializer:TruncatedNormal",
        "KaimingNormal": "bireme.initializer:MSRA",
        "XavierUniform": "bireme.initializer:Xavier",
    },
    "paddle.nn": {
        "ClipGradByGlobalNorm": "bireme.clip:GradientClipByGlobalNorm",
        "ClipGradByNorm": "bireme.clip:GradientClipByNorm",
        "ClipGradByValue": "bireme.clip:GradientClipByValue",
    },
    "paddle.optimizer": _same(_MINE, "Adagrad Adam Adamax Lamb Momentum RMSProp SGD"),
    "paddle.metric": _same(_LAYERS, "accuracy auc"),
    "paddle.io": _same("bireme.io", "DataLoader"),
    "paddle.vision": _same(_MINE, "set_image_backend"),
    "paddle.regularizer": _same("bireme.regularizer", "L1Decay L2Decay"),
}

# module:name -> where it lives here
NAMES = {
    f"{module}:{name}": home for module, found in _TABLE.items() for name, home in found.items()
}


def is_module(name: str) -> bool:
    """Whether the tutorials of 2.x have a module of this name."""
    return name in _TABLE
