"""Opens the admin port of this process if FLAGS_admin_port asks for one, on loopback unless
FLAGS_admin_host is set.

The HTTP server is in `admin_server`, which is imported on demand.
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
    """The endpoint of this process's admin port, opened by the first call; "" if FLAGS_admin_port
    asks for none.

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
