"""Places: where a program runs. This file counts devices; it computes on none."""

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bireme import flags
from bireme.errors import ConfigError, InvalidArgument, UnsupportedError

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "Place",
    "check_place",
    "cpu_count",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_place",
    "device_count",
    "is_compiled_with_cuda",
]


@dataclass(frozen=True, slots=True)
class CPUPlace:
    """The host and its memory."""

    def __str__(self) -> str:
        return "CPUPlace"


@dataclass(frozen=True, slots=True)
class CUDAPlace:
    """One CUDA device of this process."""

    id: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.id, int) or self.id < 0:
            raise InvalidArgument(
                f"CUDAPlace({self.id!r}): a device id is a whole number from 0",
                hint="write CUDAPlace(0) for the first device",
            )

    def get_device_id(self) -> int:
        return self.id

    def __str__(self) -> str:
        return f"CUDAPlace({self.id})"


@dataclass(frozen=True, slots=True)
class CUDAPinnedPlace:
    """Host memory that a device can copy from directly; computes like the CPU."""

    def __str__(self) -> str:
        return "CUDAPinnedPlace"


Place: TypeAlias = CPUPlace | CUDAPlace | CUDAPinnedPlace


@functools.cache
def device_count() -> int:
    """How many CUDA devices this process can use; 0 without CuPy or without a driver."""
    try:
        return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except Exception:  # CuPy has one error class per layer, and each of them means: no device
        return 0


def is_compiled_with_cuda() -> bool:
    """Whether a CUDA device can be used here."""
    return device_count() > 0


def check_place(place: Place) -> Place:
    """`place`, if programs can run there.

    Raises:
        UnsupportedError: a CUDA device that this machine does not have.
        InvalidArgument: not a place at all.
    """
    if not isinstance(place, CPUPlace | CUDAPlace | CUDAPinnedPlace):
        raise InvalidArgument(f"{place!r} is not a place", hint="use CPUPlace() or CUDAPlace(0)")
    if isinstance(place, CUDAPlace) and place.id >= device_count():
        found = device_count()
        raise UnsupportedError(
            f"{place} does not exist: {found or 'no'} usable CUDA device{'s' * (found != 1)} here",
            hint="use CPUPlace(), or set FLAGS_place=cpu; a GPU needs a driver and "
            "pip install 'bireme[cuda12]'",
        )
    return place


def default_place() -> Place:
    """The place of an executor that was given none, as `FLAGS_place` says."""
    name = flags.get("place")
    if name not in ("cpu", "gpu"):
        raise ConfigError(f"FLAGS_place={name}", hint="write FLAGS_place=cpu or FLAGS_place=gpu")
    return CUDAPlace(selected_devices()[0]) if name == "gpu" else CPUPlace()


def selected_devices() -> list[int]:
    """The device ids of `FLAGS_selected_gpus`, or all of them; [0] where there is none to name."""
    text = str(flags.get("selected_gpus"))
    if text.strip():
        return [int(part) for part in text.split(",")]
    return list(range(device_count())) or [0]


def cpu_count() -> int:
    """The number of CPU replicas that `CPU_NUM` asks for; 1 by default."""
    text = os.environ.get("CPU_NUM", "1")
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"CPU_NUM={text}", hint="CPU_NUM is a whole number from 1")
    return int(text)


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """`device_count` CPU places, by default as many as `CPU_NUM` says."""
    return [CPUPlace()] * (cpu_count() if device_count is None else device_count)


def cuda_places(device_ids: int | Sequence[int] | None = None) -> list[CUDAPlace]:
    """The named CUDA devices, by default those of `FLAGS_selected_gpus`, else all.

    Raises:
        UnsupportedError: a device does not exist.
    """
    if device_ids is None:
        device_ids = selected_devices()
    places = [CUDAPlace(i) for i in ([device_ids] if isinstance(device_ids, int) else device_ids)]
    for place in places:
        check_place(place)
    return places


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """`device_count` pinned places, by default as many as `CPU_NUM` says."""
    return [CUDAPinnedPlace()] * (cpu_count() if device_count is None else device_count)
