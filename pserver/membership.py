"""The trainers of a job as one server sees them, and its refusals in words."""

import math
from dataclasses import dataclass

from bireme.net.membership import Member, Membership, Refusal

from . import refusals
from .counted_calls import MAX_EARLY
from .events import Failure

__all__ = ["Limits", "Member", "Trainers"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: silence of a trainer that beats, of one that does not, until the first hello, of
    one waiting call.
    """

    silence: float = 8.0
    quiet: float = 900.0
    join: float = 300.0
    patience: float = 170.0
    farewell: float = 2.0  # how long a failed server stays to tell the others
    grace: float = 0.5  # from the end of a trainer's connections to its next sign of life
    rejoin: float = 0.0  # instead, where a trainer that was killed may be started again alone
    early: int = MAX_EARLY  # not seconds: calls of one trainer that may wait for an earlier one


class Trainers(Membership[Failure]):
    """Trainers 0 to `count` - 1, each expected once."""

    def __init__(self, count: int, limits: Limits) -> None:
        super().__init__(count, pause=limits.silence / 5)
        self._limits = limits
        # Trainers without a connection, and for how long; without a process: infinity.
        self._resets: dict[int, float] = {}
        self._reported: set[int] = set()  # those of them of whom somebody was told

    def hello(self, trainer: int, incarnation: int, beats: bool) -> Failure | None:
        """Take in a newcomer; a refusal if there is no place for it."""
        member = self.get(trainer)
        if member is not None and member.life == incarnation:
            self._resets.pop(trainer, None)
        limit = self._limits.silence if beats else self._limits.quiet
        match self.join(trainer, incarnation, limit):
            case Refusal.OUT_OF_RANGE:
                return refusals.out_of_range(trainer, self.count)
            case Refusal.LEFT:
                return refusals.finished(trainer)
            case Refusal.TAKEN:
                return refusals.taken(trainer)
        return None

    def reset(self, trainer: int, incarnation: int, ended: bool = False) -> None:
        """A trainer's last connection has ended: it must reconnect, or give a sign of life.
        `ended`: so has its process, which will do neither.
        """
        member = self.get(trainer)
        if member is not None and member.life == incarnation:
            never = ended and not self._limits.rejoin
            self._resets[trainer] = math.inf if never else self._resets.get(trainer, 0.0)

    def sign(self, trainer: int, incarnation: int, step: int | None = None) -> Failure | None:
        """Note a sign of life; a refusal if it comes from a stranger."""
        if not self.hear(trainer, incarnation, step):
            return refusals.stranger(trainer)
        self._resets.pop(trainer, None)
        return None

    def beat(self, trainer: int, incarnation: int, step: int) -> Failure | None:
        """Note a heartbeat. Where a successor may come, one shortly after the end of the
        connections proves nothing: it was under way.
        """
        since = self._resets.get(trainer, self._limits.grace)
        refusal = self.sign(trainer, incarnation, step)
        if refusal is None and since < self._limits.grace and self._limits.rejoin:
            self._resets[trainer] = since
        return refusal

    # -- another life of a trainer ---------------------------------------------------------
    @property
    def silence(self) -> float:
        """Seconds after which a trainer that beats counts as lost."""
        return self._limits.silence

    def is_member(self, trainer: int, incarnation: int) -> bool:
        """Whether this is the life of the trainer that takes part."""
        member = self.get(trainer)
        return member is not None and member.life == incarnation

    def follows(self, trainer: int, incarnation: int) -> bool:
        """Whether this is another life of a trainer, and may take its place."""
        takes_part = trainer in self.expected() and self._limits.rejoin > 0
        known = takes_part and self.get(trainer) is not None
        return known and not self.is_member(trainer, incarnation)

    def is_away(self, trainer: int) -> bool:
        """Whether a trainer has no connection, or is silent."""
        member = self.get(trainer)
        silent = member is not None and self.now - member.heard > member.silence
        return silent or trainer in self._resets

    def succeed(self, trainer: int, incarnation: int) -> int:
        """Another life takes the place of a trainer; the former life."""
        member = self.get(trainer)
        assert member is not None
        former, member.life, member.heard = member.life, incarnation, self.now
        self._resets.pop(trainer, None)
        assert isinstance(former, int)
        return former

    def newly_away(self) -> list[tuple[int, int, float]]:
        """Trainers that have gone, each once, where their successors are waited for: number, step
        and seconds to wait.
        """
        limits, time = self._limits, self._limits.silence / 3
        away = {n for n, since in self._resets.items() if since >= time and limits.rejoin}
        new, self._reported = away - self._reported, away
        return [(m.number, m.step, limits.rejoin) for m in self.active if m.number in new]

    # -- time ------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Let time go on. A late tick counts for half of the grace at most: what has arrived in
        the meantime is heard first.
        """
        gap = min(now - self.now, self._limits.grace / 2)
        self._resets = {trainer: since + gap for trainer, since in self._resets.items()}
        super().tick(now)
        for trainer in self._resets if self._limits.rejoin else ():
            self.hear(trainer)  # its silence has a known cause

    def overdue(self) -> Failure | None:
        """A failure if somebody has been missing for too long. Of several, who was heard of least
        lately: the others may have left because of it.
        """
        limits = self._limits
        for member in sorted(self.active, key=lambda member: member.heard):
            if (since := self._resets.get(member.number, 0.0)) >= (limits.rejoin or limits.grace):
                return refusals.cut_off(member.number, since, member.step, bool(limits.rejoin))
        if found := self.silent():
            member, since = found
            return refusals.silent(member.number, since, member.step)
        if self.missing and self.waited > self._limits.join:
            return refusals.absent(self.missing, self.waited)
        return None
