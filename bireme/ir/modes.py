"""The modes of parameter servers, as `listen_and_serv` and communicators number them."""

from enum import IntEnum

__all__ = ["DistributedMode"]


class DistributedMode(IntEnum):
    """How servers combine what trainers push; the attribute `distributed_mode`."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3
