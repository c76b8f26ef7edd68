"""How long a failed server stays: until every trainer has heard of the failure, or a while at most.

Trainers that are about to join hear of it too, unless the server's process itself must go.
"""

from .events import Failure
from .membership import Limits, Trainers

__all__ = ["Farewell"]


class Farewell:
    """Who has heard of the failure. Pure bookkeeping, for the core."""

    def __init__(self, trainers: Trainers, limits: Limits) -> None:
        self._trainers = trainers
        self._limits = limits
        self._leave_at = 0.0
        self._newcomers_until = 0.0
        self._told: set[int] = set()

    def begin(self) -> None:
        """The server has failed just now."""
        now = self._trainers.now
        self._leave_at = now + self._limits.farewell
        if self._trainers.waited <= self._limits.join:
            self._newcomers_until = now + self._limits.silence

    def cut_short(self) -> None:
        """Wait for no newcomers."""
        self._newcomers_until = 0.0

    def tell(self, trainer: int) -> None:
        """This trainer, or whoever claims its number, has been answered with the failure."""
        self._trainers.tell(trainer)
        self._told.add(trainer)

    def is_over(self, failure: Failure) -> bool:
        """Whether the server may leave. A trainer that is itself lost need not hear."""
        now, coming = self._trainers.now, not self._told.issuperset(self._trainers.missing)
        lost = failure.peer if failure.kind == "PeerLost" else None
        everybody = all(f"trainer {m.number}" == lost for m in self._trainers.uninformed)
        if not everybody and now < self._leave_at:
            return False
        return not coming or now >= self._newcomers_until
