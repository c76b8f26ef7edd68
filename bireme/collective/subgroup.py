"""A group with the numbers of its members in the world, and the queues that order its calls."""

from dataclasses import dataclass, field

from bireme.errors import InvalidArgument

from .group import Group
from .ordered_queue import OrderedQueue

__all__ = ["Members"]


@dataclass
class Members:
    """`ranks[i]` is the world's rank of the group's member i."""

    group: Group
    ranks: list[int]
    queues: dict[tuple[str, int], OrderedQueue] = field(default_factory=dict)

    def local(self, rank: int, what: str) -> int:
        """The group's number of a rank of the world."""
        if rank not in self.ranks:
            raise InvalidArgument(f"{what} rank {rank} is not in this group of ranks {self.ranks}")
        return self.ranks.index(rank)

    def queue(self, kind: str, peer: int = -1) -> OrderedQueue:
        return self.queues.setdefault((kind, peer), OrderedQueue())

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()
        self.group.close()
