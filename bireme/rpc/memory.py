"""glibc's allocator, told to keep what it has: page faults of large fresh buffers cost more than
copying them.

Does nothing where there is no `mallopt`.
"""

import ctypes
import functools

__all__ = ["keep_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


@functools.cache
def keep_memory() -> bool:
    """Set the process's allocator once; whether it could be set."""
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
