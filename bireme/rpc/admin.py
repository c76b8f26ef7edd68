"""Whether this process has an admin port: off unless FLAGS_admin_port asks for it, and on loopback
unless FLAGS_admin_host says otherwise.

What it serves stands in `admin_server`, which is imported only then.
"""

import threading
from typing import TYPE_CHECKING

from bireme import flags

if TYPE_CHECKING:
    from .admin_server import Admin

__all__ = ["opened"]

_open: "Admin | None" = None
_lock = threading.Lock()


def opened() -> str:
    """The endpoint of this process's admin port, opened at the first call; "" if none is asked
    for.

    Raises:
        ConfigError: the port is taken.
    """
    global _open
    port = int(flags.get("admin_port"))
    if port < 0:
        return ""
    with _lock:
        if _open is None:
            from .admin_server import Admin

            _open = Admin(str(flags.get("admin_host")), port)
        return _open.endpoint
