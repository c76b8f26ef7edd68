"""Collective communication: the Group port and its engines.

Importing this package loads no engine: names resolve when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .effects import provider
    from .group import Call, Group
    from .local import LocalGroup, local_groups
    from .world import Settings, World

__all__ = ["Call", "Group", "LocalGroup", "Settings", "World", "local_groups", "provider"]

_HOMES = {
    "Call": "group",
    "Group": "group",
    "LocalGroup": "local",
    "Settings": "world",
    "World": "world",
    "local_groups": "local",
    "provider": "effects",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
