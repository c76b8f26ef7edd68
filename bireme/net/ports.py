"""Which ports may be bound a second time. Knows one environment variable, and no socket."""

import os

__all__ = ["reserved_ports"]


def reserved_ports() -> frozenset[int]:
    """Ports that a launcher holds open for its children (BIREME_RESERVED_PORTS, comma list).

    They alone are bound with SO_REUSEPORT; any other port that is taken stays a clear error.
    """
    listed = os.environ.get("BIREME_RESERVED_PORTS", "")
    return frozenset(int(port) for port in listed.split(",") if port.strip().isdigit())
