"""Chooses between the generic kernel and its numba version when a plan is compiled."""

import functools
import importlib
import importlib.util
from typing import Any

from bireme import flags
from bireme.arrays.places import CUDAPlace, Place
from bireme.errors import ConfigError, UnsupportedError
from bireme.ops.table import Kernel, Row

__all__ = ["form_of"]


def form_of(row: Row, kernel: Kernel, place: Place) -> Kernel:
    """The form of a row's kernel for `place`."""
    if not row.compiled or kernel is not row.kernel or isinstance(place, CUDAPlace):
        return kernel
    if not _wanted(str(flags.get("use_numba"))):
        return kernel
    return _compiled(row.compiled, row.type, kernel)


def _wanted(choice: str) -> bool:
    if choice not in ("auto", "on", "off"):
        raise ConfigError(f"FLAGS_use_numba is {choice!r}", hint="say auto, on or off")
    if choice == "on" and not _installed():
        raise UnsupportedError(
            "FLAGS_use_numba=on, but numba is not installed",
            hint="pip install 'bireme[numba]', or leave the flag at auto",
        )
    return choice != "off" and _installed()


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
