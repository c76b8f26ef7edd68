"""Collective communication: `Group` and its engines.

Importing this package loads no gRPC and no engine's library; the first job does.
"""

from .group import Call, Group
from .local import LocalGroup, local_groups
from .world import Settings, World

__all__ = ["Call", "Group", "LocalGroup", "Settings", "World", "local_groups"]
