"""Rank 0's register of the ranks, as requests and answers, and the refusals in words.

A state machine: it owns no socket, no thread and no clock.
"""

from typing import NamedTuple

import msgspec

from bireme.net.membership import Membership, Refusal

__all__ = ["Beat", "Fetch", "Join", "Leave", "Post", "Register", "Report", "Request", "State"]


class Join(msgspec.Struct, tag=True):
    """Rank `rank` wants in; asked again and again until `State.members` is complete."""

    rank: int
    size: int
    terms: str  # what all ranks must agree on before they start, as text
    info: bytes  # how the others reach this rank
    incarnation: str


class Beat(msgspec.Struct, tag=True):
    rank: int


class Report(msgspec.Struct, tag=True):
    """`rank` has seen that `culprit` is gone or has failed."""

    rank: int
    culprit: int
    reason: str


class Leave(msgspec.Struct, tag=True):
    rank: int


class Post(msgspec.Struct, tag=True):
    rank: int
    key: str
    value: bytes


class Fetch(msgspec.Struct, tag=True):
    rank: int
    key: str


Request = Join | Beat | Report | Leave | Post | Fetch


class State(msgspec.Struct):
    """The answer to everything."""

    refused: str = ""  # a Join that can never succeed, or a job that cannot begin
    missing: list[int] = []
    members: list[bytes] = []  # every rank's info, once all have joined
    token: str = ""
    lost: int = -1  # the rank at fault, once there is one
    reason: str = ""
    left: list[int] = []
    value: bytes | None = None


class Loss(NamedTuple):
    """The rank at fault, and what it did."""

    rank: int
    reason: str


class Register:
    """The register of one job, kept by rank 0."""

    def __init__(self, size: int, terms: str, silence: float, token: str) -> None:
        self._terms = terms
        self._silence = silence  # seconds after which a silent rank is lost
        self._token = token
        # Rank 0 itself beats often: when nobody was heard, not even rank 0, it stood still.
        self._ranks: Membership[Loss] = Membership(size, pause=silence / 4)
        self._addresses: dict[int, bytes] = {}
        self._values: dict[str, bytes] = {}

    def handle(self, request: Request, now: float) -> State:
        """Take one request; the answer to it."""
        self._ranks.tick(now)
        if isinstance(request, Join):
            known = self._ranks.get(request.rank)
            if known is not None and known.left:
                return State(missing=[0])  # it asks for the next job at the same address
            if refused := self._join(request):
                self._ranks.tell(request.rank)
                return State(refused=refused)
        self._ranks.hear(request.rank)
        self._act(request)
        self._find_silent()
        return self._state(request)

    def _join(self, join: Join) -> str:
        """A refusal, if there has to be one. A rank that was started for another job is one of
        those that are waited for, so all are refused, unless all have joined.
        """
        unequal = self._compare(join)
        if not self._ranks.complete:
            if unequal:
                self._ranks.blame(Loss(join.rank, unequal))
            if self._ranks.failure is not None:
                return self._ranks.failure.reason
        if unequal:
            return unequal
        if self._ranks.join(join.rank, join.incarnation, self._silence) is Refusal.TAKEN:
            return f"rank {join.rank} is taken by another process"
        self._addresses[join.rank] = join.info
        return ""

    def _compare(self, join: Join) -> str:
        """How this rank's job differs from rank 0's."""
        size = self._ranks.count
        if join.size != size or not 0 <= join.rank < size:
            return f"rank {join.rank} of {join.size} asks to join a job of {size} ranks"
        if join.terms != self._terms:
            return f"rank 0 is set up for {self._terms}, rank {join.rank} for {join.terms}"
        return ""

    def _act(self, request: Request) -> None:
        match request:
            case Report():
                self._ranks.blame(Loss(request.culprit, request.reason))
            case Leave():
                failure = self._ranks.failure
                if failure is None or failure.rank != request.rank:  # else they know it is gone
                    self._ranks.leave(request.rank)
            case Post():
                self._values[request.key] = request.value

    def _find_silent(self) -> None:
        if self._ranks.complete and (found := self._ranks.silent()):
            member, since = found
            self._ranks.blame(Loss(member.number, f"silent for {since:.1f} s"))

    def _state(self, request: Request) -> State:
        ranks = self._ranks
        ranks.tell(request.rank)
        everybody = isinstance(request, Join) and ranks.complete
        lost = ranks.failure or Loss(-1, "")
        return State(
            missing=ranks.missing,
            members=[self._addresses[r] for r in range(ranks.count)] if everybody else [],
            token=self._token,
            lost=lost.rank,
            reason=lost.reason,
            left=[member.number for member in ranks.members if member.left],
            value=self._values.get(request.key) if isinstance(request, Fetch) else None,
        )

    def may_close(self) -> bool:
        """Whether everybody who is still there knows what the register had to say."""
        excused = {0} if self._ranks.failure is None else {0, self._ranks.failure.rank}
        return all(member.number in excused for member in self._ranks.uninformed)
