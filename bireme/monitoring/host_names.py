"""By which names a browser may know this process's HTTP ports.

A page from elsewhere can let its own name lead to this machine, and then read what answers to it
(DNS rebinding). It cannot do so with an address, with `localhost`, or with a name that we chose.
"""

import ipaddress
import platform

from bireme import flags

__all__ = ["chosen_names", "is_expected"]


def chosen_names() -> tuple[str, ...]:
    """The names of FLAGS_admin_names, in small letters."""
    listed = str(flags.get("admin_names")).lower().split(",")
    return tuple(name.strip() for name in listed if name.strip())


def is_expected(host: str) -> bool:
    """Whether a request with this `Host` was meant for us: `name`, `name:port`, or an address. A
    client that is not a browser may send none.
    """
    name = _without_port(host.strip().lower())
    if not name or name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return True
    ours = (str(flags.get("admin_host")).lower(), platform.node().lower(), *chosen_names())
    return name in ours


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
