"""Chooses between the generic kernel and its numba version when a plan is compiled."""

import functools
import importlib
import importlib.util
from typing import Any

from bireme import extras
from bireme.arrays.places import CUDAPlace, Place
from bireme.ops.table import Kernel, Row

__all__ = ["form_of"]


def form_of(row: Row, kernel: Kernel, place: Place) -> Kernel:
    """The form of a row's kernel for `place`."""
    if not row.compiled or kernel is not row.kernel or isinstance(place, CUDAPlace):
        return kernel
    if not extras.chosen("use_numba", _installed, "numba"):
        return kernel
    return _compiled(row.compiled, row.type, kernel)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@functools.cache
def _compiled(module: str, name: str, generic: Kernel) -> Kernel:
    """The form, with the generic kernel for arguments that the form does not take."""
    form: Kernel = getattr(importlib.import_module(f"bireme.ops.compiled.{module}"), name)

    @functools.wraps(generic)
    def kernel(*given: Any) -> Any:
        made = form(*given)
        return generic(*given) if made is None else made

    return kernel
