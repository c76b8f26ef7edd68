"""glibc's allocator: memory that a step frees is kept for the next one, because page faults of
large fresh buffers cost more than copying them.

By default at most 128 MiB are kept, in arrays of up to 32 MiB; FLAGS_keep_freed_memory keeps all.
Does nothing where `mallopt` does not exist, or where glibc's own variables (MALLOC_*_) are set.
"""

import ctypes
import functools
import os

from bireme import flags

__all__ = ["keep_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


_SOME = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 128 << 20}
_ALL = {
    _M_MMAP_THRESHOLD: 1 << 30,
    _M_TRIM_THRESHOLD: (1 << 31) - 1,
    _M_TOP_PAD: 64 << 20,
    _M_ARENA_MAX: 1,
}


def keep_memory() -> bool:
    """Configure the allocator once; returns whether it keeps everything."""
    everything = bool(flags.get("keep_freed_memory"))
    if not everything and any(name.startswith("MALLOC_") for name in os.environ):
        return False
    return _set(everything) and everything


@functools.cache
def _set(everything: bool) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = _ALL if everything else _SOME
    return all([bool(mallopt(name, value)) for name, value in settings.items()])
