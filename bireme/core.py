"""The names that Fluid scripts reach through `fluid.core`; each lives elsewhere."""

from importlib import import_module
from typing import Any

from bireme.ir import VarType

_HOMES = {
    "CPUPlace": "bireme.runtime.places",
    "CUDAPlace": "bireme.runtime.places",
    "CUDAPinnedPlace": "bireme.runtime.places",
    "is_compiled_with_cuda": "bireme.runtime.places",
    "LoDTensor": "bireme.runtime.values",
    "LoDTensorArray": "bireme.runtime.values",
    "SelectedRows": "bireme.runtime.values",
    "Scope": "bireme.runtime.scope",
}


class VarDesc:
    """Fluid spells the variable types `core.VarDesc.VarType.FP32`."""

    VarType = VarType


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bireme.core' has no attribute '{name}'")
