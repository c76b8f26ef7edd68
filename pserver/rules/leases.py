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
        self.held: dict[int, dict[tuple[int, int], int]] = {}  # trainer -> life, region -> call
        self._readers: dict[int, set[tuple[int, int]]] = {}  # region -> trainers and their lives
        self._kept: set[int] = set()  # never written again

    def told(self, region: int, call: Call) -> None:
        """The answer to `call` names this region."""
        self.held.setdefault(call.trainer, {})[call.incarnation, region] = call.sequence
        self._readers.setdefault(region, set()).add(call[:2])

    def heard(self, call: Call) -> None:
        """A trainer calls: it has read what answers to its earlier calls named."""
        held = self.held.get(call.trainer, {})
        for (life, region), sequence in list(held.items()):
            if life == call.incarnation and sequence < call.sequence:
                del held[life, region]
                self._readers[region].discard(call[:2])
        if not held:
            self.held.pop(call.trainer, None)

    def left(self, trainer: int) -> None:
        """A trainer will make no further call; it may go on reading."""
        self._kept.update(region for _, region in self.held.get(trainer, ()))

    def may_write(self, region: int) -> bool:
        """Whether nobody may be reading the region."""
        return region not in self._kept and not self._readers.get(region)

    def readers(self, region: int) -> list[int]:
        """The trainers that hold the region, in order."""
        return sorted(trainer for trainer, _ in self._readers.get(region, ()))

    def is_over(self, region: int) -> bool:
        """Whether the region can never be written again."""
        return region in self._kept
