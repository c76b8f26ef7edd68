"""glibc's allocator: FLAGS_keep_freed_memory makes it keep freed memory, because page faults of
large fresh buffers cost more than copying them.

Does nothing without the flag, or where `mallopt` does not exist.
"""

import ctypes
import functools

from bireme import flags

__all__ = ["keep_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def keep_memory() -> bool:
    """Configure the allocator once if the flag is set; returns whether it is."""
    return bool(flags.get("keep_freed_memory")) and _set()


@functools.cache
def _set() -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {
        _M_MMAP_THRESHOLD: 1 << 30,
        _M_TRIM_THRESHOLD: (1 << 31) - 1,
        _M_TOP_PAD: 64 << 20,
        _M_ARENA_MAX: 1,
    }
    return all([bool(mallopt(name, value)) for name, value in settings.items()])
