"""The names that Fluid scripts reach through `fluid.framework`; each lives elsewhere."""

from typing import Any

import bireme
from bireme import ir

_RENAMED = {"grad_var_name": "grad_name", "convert_np_dtype_to_dtype_": "to_dtype"}


def in_dygraph_mode() -> bool:
    """Never: programs are static here."""
    return False


def __getattr__(name: str) -> Any:
    try:
        return getattr(ir, _RENAMED.get(name, name))
    except AttributeError:
        pass
    if name not in bireme.__all__:
        raise AttributeError(f"module 'bireme.framework' has no attribute '{name}'")
    return getattr(bireme, name)
