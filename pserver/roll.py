"""The roll: which trainers have come, who is silent for too long, who has finished.

Time comes in by `tick` alone; an event is dated with the last tick. The file knows no names of
variables.
"""

from dataclasses import dataclass

from . import failures
from .events import Failure

__all__ = ["Limits", "Member", "Roll"]


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


@dataclass(slots=True)
class Member:
    """A trainer that has said hello."""

    trainer: int
    incarnation: int
    beats: bool
    heard: float
    step: int = -1
    done: bool = False
    told: bool = False  # knows that the job has failed


class Roll:
    """Who takes part. Numbers from 0 to `count` - 1 are expected, each once."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count = count
        self.now = 0.0
        self._limits = limits
        self._began: float | None = None
        self._members: dict[int, Member] = {}

    # -- who -------------------------------------------------------------------------------
    @property
    def active(self) -> list[Member]:
        """Those that have come and not finished, in trainer order."""
        return [m for _, m in sorted(self._members.items()) if not m.done]

    @property
    def finished(self) -> bool:
        return len(self._members) == self.count and not self.active

    def expected(self) -> list[int]:
        """Trainers that may still contribute: come or not, but not finished."""
        return [t for t in range(self.count) if t not in self._members or not self._members[t].done]

    def hello(self, trainer: int, incarnation: int, beats: bool) -> Failure | None:
        """Note a newcomer; a refusal if there is no place for it."""
        if not 0 <= trainer < self.count:
            return failures.out_of_range(trainer, self.count)
        member = self._members.get(trainer)
        if member is None:
            self._members[trainer] = Member(trainer, incarnation, beats, self.now)
        elif member.done:
            return failures.finished(trainer)
        elif member.incarnation != incarnation:
            return failures.taken(trainer)
        else:
            member.heard = self.now
        return None

    def hear(self, trainer: int, incarnation: int, step: int | None = None) -> Failure | None:
        """Note a sign of life; a refusal if it comes from a stranger."""
        member = self._members.get(trainer)
        if member is None or member.incarnation != incarnation:
            return failures.stranger(trainer)
        member.heard = self.now
        if step is not None and step > member.step:
            member.step = step
        return None

    @property
    def members(self) -> list[Member]:
        """Everybody that has come, in trainer order."""
        return [m for _, m in sorted(self._members.items())]

    def member(self, trainer: int) -> Member | None:
        return self._members.get(trainer)

    # -- time ------------------------------------------------------------------------------
    def tick(self, now: float) -> Failure | None:
        """Let time go on; a failure if somebody has been missing for too long."""
        if self._began is None:
            self._began = self.now = now
            for member in self._members.values():
                member.heard = now
        self._forgive(now - self.now)
        self.now = now
        return self._silent() or self._absent()

    def _forgive(self, gap: float) -> None:
        """A late tick says that this very process stood still: nobody else is to blame for that
        time.
        """
        if gap > self._limits.silence / 2:
            self._began = (self._began or 0.0) + gap
            for member in self._members.values():
                member.heard += gap

    def _silent(self) -> Failure | None:
        for member in self.active:
            limit = self._limits.silence if member.beats else self._limits.quiet
            since = self.now - member.heard
            if since > limit:
                return failures.silent(member.trainer, since, member.step)
        return None

    def _absent(self) -> Failure | None:
        waited = self.now - (self._began or 0.0)
        absent = [t for t in range(self.count) if t not in self._members]
        if not absent or waited <= self._limits.join:
            return None
        return failures.absent(absent, waited)
