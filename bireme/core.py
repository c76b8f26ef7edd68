"""The names that Fluid scripts reach through `fluid.core`; each lives elsewhere."""

from importlib import import_module
from typing import Any

from bireme.ir import VarType

_RUNTIME = (
    "CPUPlace CUDAPlace CUDAPinnedPlace LoDTensor LoDTensorArray SelectedRows Scope "
    "is_compiled_with_cuda"
).split()


class VarDesc:
    """Fluid spells the variable types `core.VarDesc.VarType.FP32`."""

    VarType = VarType


def __getattr__(name: str) -> Any:
    if name in _RUNTIME:
        return getattr(import_module("bireme.runtime"), name)
    raise AttributeError(f"module 'bireme.core' has no attribute '{name}'")
