"""What the tests of passes share."""

from ..support.ports import free_port

__all__ = ["free_port"]
