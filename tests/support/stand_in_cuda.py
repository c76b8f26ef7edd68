"""The part of the stand-in for CuPy that is `cupy.cuda`: one device, streams that log, no NCCL.

Work is done at once, so that a stream's log is the order in which it was queued.
"""

from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["Device", "Event", "Pool", "Stream", "cuda"]


class Device:
    """One device; `Device.entered` counts how deep the program is in it."""

    entered = 0

    def __init__(self, number: int = 0) -> None:
        if number != 0:
            raise RuntimeError(f"cudaErrorInvalidDevice: there is no device {number}")
        self.id = number

    def __enter__(self) -> "Device":
        type(self).entered += 1
        return self

    def __exit__(self, *rest: object) -> None:
        type(self).entered -= 1

    def synchronize(self) -> None:
        """Nothing is ever under way."""


class Event:
    """What was recorded, and when it counts as done."""

    def __init__(self, **kwargs: Any) -> None:
        self.stream: Stream | None = None
        self.done = True

    def record(self, stream: Any = None) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        """It is done."""


class Stream:
    """A queue that only remembers what was put in."""

    def __init__(self, null: bool = False, non_blocking: bool = False, **kwargs: Any) -> None:
        self.ptr = id(self)
        self.non_blocking = non_blocking
        self.log: list[tuple[str, Any]] = []

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        self.log.append(("record", event))
        return event

    def wait_event(self, event: Event) -> None:
        self.log.append(("wait", event))

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def __enter__(self) -> "Stream":
        _entered.append(self)
        return self

    def __exit__(self, *rest: object) -> None:
        _entered.pop()


_entered: list[Stream] = []
_default = Stream(null=True)


class Pool:
    """The memory pool, which remembers its limit."""

    def __init__(self) -> None:
        self.limit: dict[str, Any] = {}

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        assert (size is None) != (fraction is None), "CuPy takes one of the two"
        self.limit = {"size": size} if fraction is None else {"fraction": fraction}

    def malloc(self, size: int) -> int:
        return size

    def free_all_blocks(self) -> None:
        """It holds none."""


def cuda() -> Any:
    pool = Pool()
    made = ModuleType("cupy.cuda")
    made.__dict__.update(
        Device=Device,
        Event=Event,
        Stream=Stream,
        get_current_stream=lambda device_id=-1: _entered[-1] if _entered else _default,
        get_default_memory_pool=lambda: pool,
        set_allocator=lambda allocator=None: setattr(made, "allocator", allocator),
        allocator=pool.malloc,
        runtime=SimpleNamespace(getDeviceCount=lambda: 1, getDevice=lambda: 0),
        is_available=lambda: True,
        nccl=SimpleNamespace(available=False),
    )
    return made
