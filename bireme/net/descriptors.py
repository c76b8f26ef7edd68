"""How many descriptors this process may hold open: connections, files and segments share them."""

import contextlib
import resource

__all__ = ["claim"]

_MOST = 1 << 16


def claim() -> int:
    """Raise this process's soft limit to its hard limit, as far as that is of use; gives the limit.

    The usual soft limit of 1024 is for programs that call select(2). Strangers at a port could use
    it up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
