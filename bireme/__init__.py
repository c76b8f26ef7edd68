"""The public face: `import bireme as fluid`. Names only, found when first used.

`_NAMES` says in which module each public name lives, `_MODULES` which modules are reached as
attributes. No logic, and no slow import.
"""

import os
from importlib import import_module
from typing import Any

from bireme.version import __version__ as __version__

_above = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if os.path.isfile(os.path.join(_above, "pyproject.toml")):  # a checkout, installed or not
    __path__.append(_above)  # where fleet/, transpiler/ and the others are

_NAMES: dict[str, str] = {
    name: module
    for module, names in {
        "bireme.framework": "Program Block Operator Variable Parameter VarType unique_name "
        "default_main_program default_startup_program program_guard name_scope device_guard "
        "disable_dygraph disable_imperative enable_dygraph enable_imperative in_dygraph_mode "
        "load_op_library require_version",
        "bireme.runtime.executor": "Executor",
        "bireme.runtime.compiled_program": "CompiledProgram",
        "bireme.runtime.parallel_executor": "ParallelExecutor",
        "bireme.passes.strategies": "BuildStrategy ExecutionStrategy",
        "bireme.arrays.places": "CPUPlace CUDAPlace CUDAPinnedPlace cpu_places cuda_places "
        "cuda_pinned_places is_compiled_with_cuda",
        "bireme.runtime.scope": "Scope global_scope scope_guard",
        "bireme.arrays.values": "LoDTensor LoDTensorArray SelectedRows Tensor create_lod_tensor "
        "create_random_int_lodtensor",
        "bireme.transpiler": "DistributeTranspiler DistributeTranspilerConfig memory_optimize "
        "release_memory",
        "bireme.param_attr": "ParamAttr WeightNormParamAttr",
        "bireme.autodiff.backward": "append_backward gradients",
        "bireme.layers.input": "data embedding one_hot",
        "bireme.io": "save load",
        "bireme.reader": "DataFeeder DatasetFactory InMemoryDataset QueueDataset",
        "bireme.flags": "get_flags set_flags",
        "bireme.monitoring.curve_files": "save_curves",
    }.items()
    for name in names.split()
}

# modules that Fluid scripts import under these names
MODULES_ELSEWHERE = {
    "backward": "bireme.autodiff.backward",
    "communicator": "bireme.trainer.communicator",
    "compiler": "bireme.runtime.compiled_program",
    "core_avx": "bireme.core",
    "data_feeder": "bireme.reader",
    "executor": "bireme.runtime.executor",
    "input": "bireme.layers.input",
    "layer_helper": "bireme.layers.helper",
    "layer_helper_base": "bireme.layers.helper_base",
    "lod_tensor": "bireme.arrays.values",
    "parallel_executor": "bireme.runtime.parallel_executor",
}

_MODULES = (
    "average backward clip collective contrib core dataset debugger distributed errors "
    "evaluator export flags fleet framework initializer install_check io ir layers metrics nets "
    "ops optimizer param_attr passes profiler pserver reader regularizer runtime trainer "
    "transpiler"
).split()

__all__ = ["__version__", *_NAMES, *_MODULES, *MODULES_ELSEWHERE]


def __getattr__(name: str) -> Any:
    try:
        if name in _MODULES or name in MODULES_ELSEWHERE:
            return import_module(MODULES_ELSEWHERE.get(name, f"bireme.{name}"))
        if name in _NAMES:
            return getattr(import_module(_NAMES[name]), name)
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("bireme."):
            raise
    raise AttributeError(f"module 'bireme' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
