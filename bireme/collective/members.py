"""A group beside the world's ranks of its members, and the lanes in which its calls keep order."""

from dataclasses import dataclass, field

from bireme.errors import InvalidArgument

from .group import Group
from .lanes import Lane

__all__ = ["Members"]


@dataclass
class Members:
    """`ranks[i]` is the world's rank of the group's member i."""

    group: Group
    ranks: list[int]
    lanes: dict[tuple[str, int], Lane] = field(default_factory=dict)

    def local(self, rank: int, what: str) -> int:
        """The group's number of a rank of the world."""
        if rank not in self.ranks:
            raise InvalidArgument(f"{what} rank {rank} is not in this group of ranks {self.ranks}")
        return self.ranks.index(rank)

    def lane(self, kind: str, peer: int = -1) -> Lane:
        return self.lanes.setdefault((kind, peer), Lane())

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        self.group.close()
