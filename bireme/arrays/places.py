"""Places: devices on which programs run."""

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bireme import flags
from bireme.errors import ConfigError, InvalidArgument, UnsupportedError, WrongType

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
    "get_places",
    "is_compiled_with_cuda",
    "only_cpu",
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
                f"CUDAPlace({self.id!r}): a device id is an integer >= 0",
                hint="write CUDAPlace(0) for the first device",
            )

    def get_device_id(self) -> int:
        return self.id

    def __str__(self) -> str:
        return f"CUDAPlace({self.id})"


@dataclass(frozen=True, slots=True)
class CUDAPinnedPlace:
    """Pinned host memory, which a device can copy from directly; computes like the CPU."""

    def __str__(self) -> str:
        return "CUDAPinnedPlace"


Place: TypeAlias = CPUPlace | CUDAPlace | CUDAPinnedPlace


@functools.cache
def device_count() -> int:
    """The number of usable CUDA devices; 0 without CuPy or without a driver."""
    try:
        return int(importlib.import_module("cupy").cuda.runtime.getDeviceCount())
    except (
        Exception
    ):  # CuPy has one error class per layer; all of them mean that there is no device
        return 0


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[Place]:
    """The first places of a kind ("CPU" or "CUDA"), as in `layers.device.get_places`."""
    kind = (device_type or ("CUDA" if is_compiled_with_cuda() else "CPU")).upper()
    if kind not in ("CPU", "CUDA"):
        raise InvalidArgument(f"device_type is {device_type!r}", hint="write 'CPU' or 'CUDA'")
    if kind == "CPU":
        return list(cpu_places(device_count))
    return list(cuda_places(None if device_count is None else range(device_count)))


def is_compiled_with_cuda() -> bool:
    """Whether a CUDA device can be used."""
    return device_count() > 0


def check_place(place: Place) -> Place:
    """`place`, if programs can run there; a CUDA device becomes the CPU if FLAGS_place=cpu.

    Raises:
        UnsupportedError: a CUDA device that this machine does not have.
        InvalidArgument: not a place at all.
    """
    if not isinstance(place, CPUPlace | CUDAPlace | CUDAPinnedPlace):
        raise WrongType(f"{place!r} is not a place", hint="use CPUPlace() or CUDAPlace(0)")
    if isinstance(place, CUDAPlace) and only_cpu():
        return CPUPlace()
    if isinstance(place, CUDAPlace) and place.id >= device_count():
        found = device_count()
        raise UnsupportedError(
            f"{place} does not exist: {found or 'no'} usable CUDA device{'s' * (found != 1)} here",
            hint="run it on the CPU with `bireme run --cpu` or `bireme launch --cpu` (or "
            "FLAGS_place=cpu in the environment); a GPU needs a driver and "
            "pip install 'bireme[cuda12]'",
        )
    return place


def only_cpu() -> bool:
    """Whether the user set FLAGS_place=cpu to run scripts written for a GPU without one."""
    setting = flags.settings()["place"]
    return setting.value == "cpu" and setting.source != "default"


def default_place() -> Place:
    """The default place of executors, from `FLAGS_place`."""
    name = flags.get("place")
    if name not in ("cpu", "gpu"):
        raise ConfigError(f"FLAGS_place={name}", hint="write FLAGS_place=cpu or FLAGS_place=gpu")
    return CUDAPlace(selected_devices()[0]) if name == "gpu" else CPUPlace()


def selected_devices() -> list[int]:
    """The device ids of `FLAGS_selected_gpus`, else of all devices; [0] if there are none."""
    text = str(flags.get("selected_gpus"))
    if text.strip():
        return [int(part) for part in text.split(",")]
    return list(range(device_count())) or [0]


def cpu_count() -> int:
    """The number of CPU replicas, from `CPU_NUM`; 1 by default."""
    text = os.environ.get("CPU_NUM", "1")
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"CPU_NUM={text}", hint="CPU_NUM is an integer >= 1")
    return int(text)


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """`device_count` CPU places, by default `CPU_NUM`."""
    return [CPUPlace()] * (cpu_count() if device_count is None else device_count)


def cuda_places(device_ids: int | Sequence[int] | None = None) -> list[Place]:
    """The given CUDA devices, by default those of `FLAGS_selected_gpus`, else all.

    Raises:
        UnsupportedError: a device does not exist.
    """
    if device_ids is None:
        device_ids = selected_devices()
    ids = [device_ids] if isinstance(device_ids, int) else device_ids
    return [check_place(CUDAPlace(i)) for i in ids]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """`device_count` pinned places, by default `CPU_NUM`."""
    return [CUDAPinnedPlace()] * (cpu_count() if device_count is None else device_count)
