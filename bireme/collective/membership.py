"""Who is in the job, who is lost, and whose fault it is. The rules of rank 0's register.

A state machine: requests and the time go in, answers come out. It owns no socket, no thread
and no clock, so that "rank 2 is silent for ten seconds" is a unit test.
"""

from dataclasses import dataclass, field

import msgspec

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

    refused: str = ""  # a Join that can never succeed
    missing: list[int] = []
    members: list[bytes] = []  # every rank's info, once all have joined
    token: str = ""
    lost: int = -1  # the rank at fault, once there is one
    reason: str = ""
    left: list[int] = []
    value: bytes | None = None


@dataclass
class Register:
    """The register of one job, kept by rank 0."""

    size: int
    terms: str
    silence: float  # seconds after which a silent member is lost
    token: str
    infos: dict[int, Join] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)
    left: dict[int, set[int]] = field(default_factory=dict)  # who left -> who knows it
    values: dict[str, bytes] = field(default_factory=dict)
    heard: float = 0.0
    lost: int = -1
    reason: str = ""
    told: set[int] = field(default_factory=set)  # who knows about the loss

    def handle(self, request: Request, now: float) -> State:
        """The only door."""
        if isinstance(request, Join):
            if self._is_over_for(request):
                return State(missing=[0])
            refused = self._join(request)
            if refused:
                return State(refused=refused)
        self._forgive_pause(now)
        self.seen[request.rank] = now
        self._act(request)
        self._find_silent(now)
        return self._state(request)

    def _is_over_for(self, join: Join) -> bool:
        """Whether the rank has left this job, and asks for the next one at the same address."""
        known = self.infos.get(join.rank)
        return join.rank in self.left and known is not None and known != join

    def _join(self, join: Join) -> str:
        known = self.infos.get(join.rank)
        if not 0 <= join.rank < self.size or join.size != self.size:
            return f"rank {join.rank} of {join.size} asks to join a job of {self.size} ranks"
        if join.terms != self.terms:
            return f"rank 0 is set up for {self.terms}, rank {join.rank} for {join.terms}"
        if known is not None and known.incarnation != join.incarnation:
            return f"rank {join.rank} is taken by another process"
        self.infos[join.rank] = join
        return ""

    def _act(self, request: Request) -> None:
        match request:
            case Report():
                self._blame(request.culprit, request.reason)
            case Leave():
                self.left.setdefault(request.rank, {request.rank})
            case Post():
                self.values[request.key] = request.value

    def _blame(self, culprit: int, reason: str) -> None:
        # The first loss is the cause; those after it left because of it.
        if self.lost < 0:
            self.lost, self.reason = culprit, reason

    def _forgive_pause(self, now: float) -> None:
        # Rank 0 itself beats often: if it heard nobody, not even itself, then it was stopped.
        if now - self.heard > self.silence / 2:
            self.seen = dict.fromkeys(self.seen, now)
        self.heard = now

    def _find_silent(self, now: float) -> None:
        if not self.complete:
            return
        for rank in sorted(self.seen):
            silent = now - self.seen[rank]
            if rank not in self.left and silent > self.silence:
                self._blame(rank, f"silent for {silent:.1f} s")

    def _state(self, request: Request) -> State:
        for knows in self.left.values():
            knows.add(request.rank)
        if self.lost >= 0:
            self.told.add(request.rank)
        infos = [self.infos[r].info for r in range(self.size)] if self.complete else []
        return State(
            missing=[r for r in range(self.size) if r not in self.infos],
            members=infos if isinstance(request, Join) else [],
            token=self.token,
            lost=self.lost,
            reason=self.reason,
            left=sorted(self.left),
            value=self.values.get(request.key) if isinstance(request, Fetch) else None,
        )

    @property
    def complete(self) -> bool:
        return len(self.infos) == self.size

    def may_close(self) -> bool:
        """Whether everybody who is still there knows what the register had to say."""
        for rank in self.infos:
            if rank in (0, self.lost) or rank in self.left:
                continue
            if self.lost >= 0 and rank not in self.told:
                return False
            if any(rank not in knows for knows in self.left.values()):
                return False
        return True
