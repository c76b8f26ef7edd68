"""The trainers of a job as one server sees them, and its refusals in words."""

from dataclasses import dataclass
from math import inf

from bireme.net.membership import Member, Membership, Refusal
from bireme.net.messages import Refused

from . import refusals
from .counted_calls import MAX_EARLY

__all__ = ["Limits", "Member", "Trainers"]

UNDER_WAY = 0.5  # seconds that a heartbeat may be on its way


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
    rejoin: float = 0.0  # of absence, where a trainer that was killed may be started again alone
    early: int = MAX_EARLY  # not seconds: calls of one trainer that may wait for an earlier one


class Trainers(Membership[Refused]):
    """Trainers 0 to `count` - 1, each expected once."""

    def __init__(self, count: int, limits: Limits) -> None:
        super().__init__(count, pause=limits.silence / 5)
        self._limits = limits
        self._resets: dict[int, float] = {}  # trainers without connections since when, in order
        self._unreported: dict[int, None] = {}  # those of them whose absence was not reported yet
        self._ended: set[int] = set()  # trainers without a process

    def hello(self, trainer: int, incarnation: int, beats: bool) -> Refused | None:
        """Take in a newcomer; a refusal if there is no place for it."""
        member = self.get(trainer)
        if member is not None and member.life == incarnation:
            self._connected(trainer)
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
        """A trainer's last connection has ended: it has to reconnect, or to give a sign of life,
        before its silence lasts too long. `ended`: so has its process, which will do neither.
        """
        member = self.get(trainer)
        if member is None or member.life != incarnation or member.left:
            return
        if ended and not self._limits.rejoin:
            self._ended.add(trainer)
        elif trainer not in self._resets:
            self._resets[trainer] = self.now
            self._unreported[trainer] = None
            if self._limits.rejoin:
                self.excuse(trainer)

    def _connected(self, trainer: int) -> None:
        self._resets.pop(trainer, None)
        self._unreported.pop(trainer, None)
        self._ended.discard(trainer)

    def sign(self, trainer: int, incarnation: int, step: int | None = None) -> Refused | None:
        """Note a sign of life; a refusal if it comes from a stranger."""
        if not self.hear(trainer, incarnation, step):
            return refusals.stranger(trainer)
        if self._resets or self._ended:
            self._connected(trainer)
        return None

    def beat(self, trainer: int, incarnation: int, step: int) -> Refused | None:
        """Note a heartbeat. Where a successor may come, one shortly after the end of the
        connections proves nothing: it was under way.
        """
        if not self._limits.rejoin or self._since(trainer) >= UNDER_WAY:
            return self.sign(trainer, incarnation, step)
        if not self.hear(trainer, incarnation, step):
            return refusals.stranger(trainer)
        self.excuse(trainer)
        return None

    def _since(self, trainer: int) -> float:
        """Seconds since the end of a trainer's connections; infinity if it has some."""
        return self.now - self._resets.get(trainer, -inf)

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
        member = self.get(trainer)
        if member is None or member.left or not self._limits.rejoin:
            return False
        return member.life != incarnation

    def is_away(self, trainer: int) -> bool:
        """Whether a trainer has no connection, or is silent."""
        member = self.get(trainer)
        silent = member is not None and self.now - member.heard > member.silence
        return silent or trainer in self._resets

    def succeed(self, trainer: int, incarnation: int) -> int:
        """Another life takes the place of a trainer; the former life."""
        member = self.get(trainer)
        assert member is not None
        former, member.life = member.life, incarnation
        self.hear(trainer)
        self._connected(trainer)
        assert isinstance(former, int)
        return former

    def newly_away(self) -> list[tuple[int, int, float]]:
        """Trainers that have gone, each once, where their successors are waited for: number, step
        and seconds to wait.
        """
        found = []
        for trainer in list(self._unreported) if self._limits.rejoin else ():
            if self._since(trainer) < self._limits.silence / 3:
                break
            del self._unreported[trainer]
            member = self.get(trainer)
            if member is not None and not member.left:
                found.append((trainer, member.step, self._limits.rejoin))
        return found

    def leave(self, number: int) -> None:
        """A trainer has finished."""
        self._connected(number)
        super().leave(number)

    # -- time ------------------------------------------------------------------------------
    def overdue(self) -> Refused | None:
        """A failure if a trainer has been missing for too long. Of several, that of the trainer
        which was heard least lately: the others may have left because of it.
        """
        lost = [member for number in self._lost() if (member := self.get(number)) is not None]
        if lost:
            member = min(lost, key=lambda member: (member.heard, member.number))
            since = inf if member.number in self._ended else self._since(member.number)
            return refusals.cut_off(member.number, since, member.step, bool(self._limits.rejoin))
        if found := self.silent():
            member, since = found
            if member.number in self._resets:
                return refusals.cut_off(member.number, self._since(member.number), member.step)
            return refusals.silent(member.number, since, member.step)
        if not self.complete and self.now > self._limits.join:
            return refusals.absent(self.missing, self.now)
        return None

    def _lost(self) -> list[int]:
        """Trainers without a process, or without a connection for too long."""
        limit, found = self._limits.rejoin or self._limits.silence, list(self._ended)
        for trainer in self._resets:  # the first one is away for the longest time
            if self._since(trainer) < limit:
                break
            found.append(trainer)
        return found
