"""The device of an executor: initialised once, current while programs run.

On a CUDA device all work is queued on CuPy's current stream of the calling thread (the default
stream unless the user enters another), so it is ordered with the user's own work. Host arrays are
copied through CuPy's pinned memory. Communication uses separate streams ordered by events, see
`bireme.collective.nccl`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from bireme import flags
from bireme.arrays.namespaces import cupy, to_device
from bireme.arrays.places import CUDAPlace, Place
from bireme.arrays.values import LoDTensor, LoDTensorArray, SelectedRows
from bireme.errors import ConfigError

__all__ = ["bring_to", "device_of"]

_MEGABYTE = 1 << 20


def device_of(place: Place) -> AbstractContextManager[Any]:
    """A reentrant context for everything that computes at `place`."""
    if not isinstance(place, CUDAPlace):
        return nullcontext()
    module = cupy()
    device: AbstractContextManager[Any] = module.cuda.Device(place.id)
    with device:
        _limit_memory(module)
    return device


def bring_to(place: Place) -> Callable[[Any], Any] | None:
    """A function that moves scope values to `place`; None if no value can be elsewhere."""
    if not isinstance(place, CUDAPlace) and "cupy" not in sys.modules:
        return None
    return lambda value: _brought(value, place)


def _brought(value: Any, place: Place) -> Any:
    """The value itself if it is already there."""
    if isinstance(value, np.ndarray):
        return to_device(value, place) if isinstance(place, CUDAPlace) else value
    if isinstance(value, SelectedRows):
        rows, inner = _brought(value.rows, place), _brought(value.value, place)
        same = rows is value.rows and inner is value.value
        return value if same else SelectedRows(rows, inner, value.height, value.ordered)
    if isinstance(value, LoDTensor):
        array = _brought(value.array, place)
        return value if array is value.array else LoDTensor(array, value.offsets)
    if isinstance(value, LoDTensorArray):
        parts = [_brought(part, place) for part in value]
        same = all(a is b for a, b in zip(parts, value, strict=True))
        return value if same else LoDTensorArray(parts)
    if hasattr(value, "__cuda_array_interface__") and not isinstance(place, CUDAPlace):
        return to_device(value, place)
    return value


def _limit_memory(module: Any) -> None:
    """Limit the memory pool of the current device as the flags say; a fraction of 0 disables the
    pool.
    """
    pool = module.get_default_memory_pool()
    megabytes = int(flags.get("gpu_memory_limit_mb"))
    fraction = float(flags.get("fraction_of_gpu_memory_to_use"))
    if not 0 <= fraction <= 1:
        raise ConfigError(
            f"FLAGS_fraction_of_gpu_memory_to_use={fraction:g}",
            hint="write a share from 0 to 1, such as 0.92",
        )
    if not fraction:
        module.cuda.set_allocator(None)
    elif megabytes:
        pool.set_limit(size=megabytes * _MEGABYTE)
    else:
        pool.set_limit(fraction=fraction)
