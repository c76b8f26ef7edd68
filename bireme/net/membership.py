"""Membership of a job: who is here, in which life, silent since when, who has left, what failed.

A state machine without clock, socket or thread: time enters with `tick`, and everything else is
dated with the last tick. It serves parameter servers, whose members are trainers, and collective
jobs, whose members are ranks; both word their own messages.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

__all__ = ["UNTOLD", "JobSize", "Member", "Membership", "Refusal"]

Cause = TypeVar("Cause")


class JobSize(NamedTuple):
    """What a process was told of its job: how many trainers and servers it has, and which of the
    servers is meant. 0 and -1: it was not told.
    """

    trainers: int = 0
    servers: int = 0
    server: int = -1


UNTOLD = JobSize()


class Refusal(Enum):
    """Why a process cannot join."""

    OUT_OF_RANGE = "no such number in this job"
    TAKEN = "another process has this number"
    LEFT = "this number has left the job"


@dataclass(slots=True)
class Member:
    """A process that has joined."""

    number: int
    life: int | str  # changes when the process is started again
    silence: float  # seconds after which it counts as lost
    heard: float  # time of its last sign of life
    step: int = -1  # the last step that it has reported
    left: bool = False
    told: int = 0  # how much of the news it knows


class Membership(Generic[Cause]):
    """Members are numbered from 0 to `count` - 1, and each number is expected once.

    Of the time between two ticks `pause` seconds count at most: in the rest this very process did
    not run, and nobody is blamed for that.
    """

    def __init__(self, count: int, pause: float) -> None:
        self.count = count
        self.now = 0.0
        self.failure: Cause | None = None  # the first one is the cause of those that follow
        self._pause = pause
        self._began: float | None = None
        self._members: dict[int, Member] = {}
        self._news = 0  # departures and failures so far

    # -- who is here -----------------------------------------------------------------------
    @property
    def members(self) -> list[Member]:
        """Everybody that has joined, in order."""
        return [member for _, member in sorted(self._members.items())]

    @property
    def active(self) -> list[Member]:
        """Members that have not left, in order."""
        return [member for member in self.members if not member.left]

    @property
    def missing(self) -> list[int]:
        """Numbers that have never joined."""
        return [n for n in range(self.count) if n not in self._members]

    @property
    def complete(self) -> bool:
        return len(self._members) == self.count

    @property
    def finished(self) -> bool:
        """Whether everybody has come and left."""
        return self.complete and not self.active

    def expected(self) -> list[int]:
        """Numbers that may still contribute: those that have not left, joined or not."""
        return [n for n in range(self.count) if n not in self._members or not self._members[n].left]

    def get(self, number: int) -> Member | None:
        return self._members.get(number)

    # -- joining, signs of life, leaving ---------------------------------------------------
    def join(self, number: int, life: int | str, silence: float) -> Refusal | None:
        """Add a member; joining again in the same life is a sign of life."""
        if not 0 <= number < self.count:
            return Refusal.OUT_OF_RANGE
        member = self._members.get(number)
        if member is None:
            self._members[number] = Member(number, life, silence, self.now, told=self._news)
            return None
        if member.left:
            return Refusal.LEFT
        if member.life != life:
            return Refusal.TAKEN
        member.heard = self.now
        return None

    def hear(self, number: int, life: int | str | None = None, step: int | None = None) -> bool:
        """Note a sign of life; False if it comes from no member, or from another life of one."""
        member = self._members.get(number)
        if member is None or life not in (None, member.life):
            return False
        member.heard = self.now
        member.step = max(member.step, -1 if step is None else step)
        return True

    def leave(self, number: int) -> None:
        member = self._members.get(number)
        if member is not None and not member.left:
            member.left = True
            self._news += 1
            member.told = self._news

    # -- failure, and who knows of it ------------------------------------------------------
    def blame(self, cause: Cause) -> None:
        """Record a failure unless there was one before."""
        if self.failure is None:
            self.failure = cause
            self._news += 1

    def tell(self, number: int) -> None:
        """A member is being told all the news."""
        member = self._members.get(number)
        if member is not None:
            member.told = self._news

    @property
    def uninformed(self) -> list[Member]:
        """Active members that do not know all the news."""
        return [member for member in self.active if member.told < self._news]

    # -- time ------------------------------------------------------------------------------
    def tick(self, now: float) -> None:
        """Let time go on."""
        if self._began is None:
            self._shift(now)
            self._began = now
        elif (gap := now - self.now - self._pause) > 0:
            self._shift(gap)
            self._began += gap
        self.now = now

    def _shift(self, gap: float) -> None:
        for member in self._members.values():
            member.heard += gap

    @property
    def waited(self) -> float:
        """Seconds since the first tick."""
        return self.now - (self._began or 0.0)

    def silent(self) -> tuple[Member, float] | None:
        """The first active member that has been silent for too long, and for how many seconds."""
        for member in self.active:
            since = self.now - member.heard
            if since > member.silence:
                return member, since
        return None
