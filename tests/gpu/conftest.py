"""Ports for tests that listen."""

from ..support.ports import free_port

__all__ = ["free_port"]
