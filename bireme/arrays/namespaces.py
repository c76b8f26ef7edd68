"""The array type, and the array namespace (NumPy or CuPy) of a place.

CuPy is imported only here and in `bireme.collective.nccl`.
"""

import importlib
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from bireme.errors import UnsupportedError

from .places import CUDAPlace, Place

__all__ = ["Array", "block_bytes", "cupy", "namespace", "namespace_of", "to_device", "to_host"]

Array: TypeAlias = Any


def cupy() -> ModuleType:
    """CuPy, imported when first needed.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError:
        raise UnsupportedError(
            "CUDAPlace needs CuPy, which is not installed",
            hint="pip install 'bireme[cuda12]', or run on the CPU: CPUPlace() or FLAGS_place=cpu",
        ) from None


def namespace(place: Place) -> ModuleType:
    """The array namespace of `place`: NumPy for host places, CuPy for a CUDA device."""
    return cupy() if isinstance(place, CUDAPlace) else np


def namespace_of(array: Array) -> ModuleType:
    """The namespace that `array` belongs to."""
    return np if isinstance(array, np.ndarray | np.generic) else cupy()


def block_bytes(xp: Any) -> int:
    """How much of an array a blocked kernel should process at a time: a cache-sized part on the
    CPU, everything on a device.
    """
    return 1 << 21 if xp is np else 1 << 40


def to_host(array: Array) -> Array:
    """`array` as a NumPy array, without a copy if it is one."""
    if isinstance(array, np.ndarray):
        return array
    return array.get() if hasattr(array, "get") else np.asarray(array)


def to_device(array: Array, place: Place) -> Array:
    """`array` on the device of `place`, without a copy if it is there."""
    if isinstance(place, CUDAPlace):
        module = cupy()
        with module.cuda.Device(place.id):
            return module.asarray(array)
    return to_host(array)
