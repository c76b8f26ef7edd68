"""Leases on shared memory: which trainer may still be reading which region of ours.

A region is named in the answer to a call. Its reader has read it when it makes its next call, so
the next call ends the lease. A trainer that finishes, or comes back in another life, makes no
further call in its old one: what it was told of is never written again. Pure bookkeeping, for the
core; a region is a number here.
"""

from .events import Call

__all__ = ["Leases"]


class Leases:
    """Who was told of which region, and by the answer to which call."""

    def __init__(self) -> None:
        self._readers: dict[int, dict[tuple[int, int], int]] = {}  # region -> life -> sequence
        self._kept: set[int] = set()  # never written again

    def told(self, region: int, call: Call) -> None:
        """The answer to `call` names this region."""
        self._readers.setdefault(region, {})[call[:2]] = call.sequence

    def heard(self, call: Call) -> None:
        """A trainer calls: it has read what answers to its earlier calls named."""
        life = call[:2]
        for readers in self._readers.values():
            if readers.get(life, call.sequence) < call.sequence:
                del readers[life]

    def left(self, trainer: int) -> None:
        """A trainer will make no further call; it may go on reading."""
        for region, readers in self._readers.items():
            if any(life[0] == trainer for life in readers):
                self._kept.add(region)

    def may_write(self, region: int) -> bool:
        """Whether nobody may be reading the region."""
        return region not in self._kept and not self._readers.get(region)

    def readers(self, region: int) -> list[int]:
        """The trainers that hold the region, in order."""
        return sorted(trainer for trainer, _ in self._readers.get(region, ()))

    def is_over(self, region: int) -> bool:
        """Whether the region can never be written again."""
        return region in self._kept
