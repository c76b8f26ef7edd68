"""The device of an executor: made ready once, current while programs run.

On a CUDA device everything is queued on the calling thread's current stream of CuPy (the default
stream, unless the user enters another), so what a user queues before and after a run keeps its
order. Host arrays go there through CuPy's pinned staging memory. Communication has streams of its
own, ordered by events: see `bireme.collective.nccl`.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from bireme import flags
from bireme.errors import ConfigError

from .arrays import cupy, to_device
from .places import CUDAPlace, Place
from .values import LoDTensor, LoDTensorArray, SelectedRows

__all__ = ["bring_to", "device_of"]

_MEGABYTE = 1 << 20


def device_of(place: Place) -> AbstractContextManager[Any]:
    """What to enter around everything that computes at `place`; may be entered again and again."""
    if not isinstance(place, CUDAPlace):
        return nullcontext()
    module = cupy()
    device: AbstractContextManager[Any] = module.cuda.Device(place.id)
    with device:
        _limit_memory(module)
    return device


def bring_to(place: Place) -> Callable[[Any], Any] | None:
    """What moves a value of a scope to where `place` computes; None where nothing is elsewhere."""
    if not isinstance(place, CUDAPlace) and "cupy" not in sys.modules:
        return None
    return lambda value: _brought(value, place)


def _brought(value: Any, place: Place) -> Any:
    """The value itself where it is there already."""
    if isinstance(value, np.ndarray):
        return to_device(value, place) if isinstance(place, CUDAPlace) else value
    if isinstance(value, SelectedRows):
        rows, inner = _brought(value.rows, place), _brought(value.value, place)
        same = rows is value.rows and inner is value.value
        return value if same else SelectedRows(rows, inner, value.height)
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
    """Hold the pool of the current device to what the flags say; a share of 0 is no pool at all."""
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
