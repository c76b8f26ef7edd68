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

    `now` is the time since the first tick. Between two ticks it advances by `pause` seconds at
    most: during the rest this very process did not run, and nobody is blamed for that. An event
    costs the same whatever the number of members.
    """

    def __init__(self, count: int, pause: float) -> None:
        self.count = count
        self.now = 0.0
        self.failure: Cause | None = None  # the first one is the cause of those that follow
        self._pause = pause
        self._clock: float | None = None  # the last tick's own time
        self._members: dict[int, Member] = {}
        self._watched: dict[float, dict[int, Member]] = {}  # by silence, longest silent first
        self._departed = 0
        self._expected: tuple[int, ...] | None = None
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
        return self._departed == self.count

    def expected(self) -> tuple[int, ...]:
        """Numbers that may still contribute: those that have not left, joined or not."""
        if self._expected is None:
            known = self._members
            every = range(self.count)
            self._expected = tuple(n for n in every if n not in known or not known[n].left)
        return self._expected

    def get(self, number: int) -> Member | None:
        return self._members.get(number)

    # -- joining, signs of life, leaving ---------------------------------------------------
    def join(self, number: int, life: int | str, silence: float) -> Refusal | None:
        """Add a member; joining again in the same life is a sign of life."""
        if not 0 <= number < self.count:
            return Refusal.OUT_OF_RANGE
        member = self._members.get(number)
        if member is None:
            member = Member(number, life, silence, self.now, told=self._news)
            self._members[number] = member
        elif member.left:
            return Refusal.LEFT
        elif member.life != life:
            return Refusal.TAKEN
        self._note(member)
        return None

    def hear(self, number: int, life: int | str | None = None, step: int | None = None) -> bool:
        """Note a sign of life; False if it comes from no member, or from another life of one."""
        member = self._members.get(number)
        if member is None or (life is not None and life != member.life):
            return False
        if step is not None and step > member.step:
            member.step = step
        self._note(member)
        return True

    def _note(self, member: Member) -> None:
        """A sign of life: of all members with its limit, this one is silent for the least time."""
        member.heard = self.now
        if not member.left:
            watched = self._watched.setdefault(member.silence, {})
            watched.pop(member.number, None)
            watched[member.number] = member

    def excuse(self, number: int) -> None:
        """Do not count a member's silence until it is heard again: its cause is known."""
        member = self._members.get(number)
        if member is not None and member.silence in self._watched:
            self._watched[member.silence].pop(number, None)

    def leave(self, number: int) -> None:
        member = self._members.get(number)
        if member is not None and not member.left:
            self.excuse(number)
            member.left = True
            self._departed += 1
            self._expected = None
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
        """Advance the clock to `now`, seconds of any steady clock."""
        if self._clock is not None:
            self.now += min(now - self._clock, self._pause)
        self._clock = now

    def silent(self) -> tuple[Member, float] | None:
        """The active member that has been silent for too long, and for how many seconds. Of several
        the one with the lowest number.
        """
        found: list[Member] = []
        for watched in self._watched.values():
            for member in watched.values():  # the first is silent for the longest time
                if self.now - member.heard <= member.silence:
                    break
                found.append(member)
        if not found:
            return None
        first = min(found, key=lambda member: member.number)
        return first, self.now - first.heard
