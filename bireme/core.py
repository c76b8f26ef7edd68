"""The names that Fluid scripts reach through `fluid.core`; each lives elsewhere."""

from importlib import import_module
from typing import Any

from bireme.ir import VarType

_HOMES = {
    "CPUPlace": "bireme.runtime.places:CPUPlace",
    "CUDAPlace": "bireme.runtime.places:CUDAPlace",
    "CUDAPinnedPlace": "bireme.runtime.places:CUDAPinnedPlace",
    "is_compiled_with_cuda": "bireme.runtime.places:is_compiled_with_cuda",
    "get_cuda_device_count": "bireme.runtime.places:device_count",
    "LoDTensor": "bireme.runtime.values:LoDTensor",
    "LoDTensorArray": "bireme.runtime.values:LoDTensorArray",
    "SelectedRows": "bireme.runtime.values:SelectedRows",
    "Scope": "bireme.runtime.scope:Scope",
    "EOFException": "bireme.reader:EndOfData",
}


class VarDesc:
    """Fluid spells the variable types `core.VarDesc.VarType.FP32`."""

    VarType = VarType


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bireme.core' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)
