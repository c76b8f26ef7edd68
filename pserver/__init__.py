"""The server role: a state machine, its shell, and the program's blocks that it runs."""

from typing import Any

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    """`serve` brings gRPC with it, so it is fetched when a program first contains a server."""
    if name == "serve":
        from .hosting import serve

        return serve
    raise AttributeError(name)
