"""How long a failed server stays: until every trainer has heard of the failure, or a while at most.

Trainers that are about to join hear of it too, unless the server's process itself must go.
"""

from bireme.net.messages import Refused

from .membership import Limits, Trainers

__all__ = ["Farewell"]


class Farewell:
    """Who has heard of the failure. Pure bookkeeping, for the core."""

    def __init__(self, trainers: Trainers, limits: Limits) -> None:
        self._trainers = trainers
        self._limits = limits
        self._leave_at = 0.0
        self._newcomers_until = 0.0
        self._untold: set[int] = set()  # trainers that take part
        self._absent: set[int] = set()  # trainers that have not come

    def begin(self, failure: Refused) -> None:
        """The server has failed just now. A trainer that is itself lost need not hear."""
        now = self._trainers.now
        self._leave_at = now + self._limits.farewell
        if now <= self._limits.join:
            self._newcomers_until = now + self._limits.silence
        lost = failure.peer if failure.kind == "PeerLost" else None
        active = (member.number for member in self._trainers.active)
        self._untold = {number for number in active if f"trainer {number}" != lost}
        self._absent = set(self._trainers.missing)

    def cut_short(self) -> None:
        """Wait for no newcomers."""
        self._newcomers_until = 0.0

    def tell(self, trainer: int) -> None:
        """This trainer, or whoever claims its number, has been answered with the failure."""
        self._untold.discard(trainer)
        self._absent.discard(trainer)

    def is_over(self) -> bool:
        """Whether the server may leave."""
        now = self._trainers.now
        if self._untold and now < self._leave_at:
            return False
        return not self._absent or now >= self._newcomers_until
