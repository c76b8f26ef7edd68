"""The trainers of a job as one server sees them: who takes part, who takes over from whom, and who
has been told of a failure.

A server that was killed is followed by one that knows the trainers of its record. The first sign of
life of one of them proves that the job continues; a trainer in another incarnation, that the job
was restarted.

A trainer that was killed is followed by one with the same number. It is let in when the former
process is away: its connections have ended, or it has been silent for too long. What the former
process has pushed since its last barrier is put aside: a barrier of the successor uses it or drops
it. Pure bookkeeping, for the core.
"""

from dataclasses import dataclass
from math import inf

from bireme.net import messages as m
from bireme.net.membership import Member, Membership, Refusal
from bireme.net.messages import Refused

from ..journal.records import Known
from . import errors
from .calls import MAX_EARLY, CountedCalls
from .events import Arrived, Discard, Report
from .rounds import Pushed, UpdatePolicy

__all__ = ["Farewell", "Limits", "Member", "Succession", "Trainers"]

Life = tuple[int, int]  # trainer, incarnation
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
                return errors.out_of_range(trainer, self.count)
            case Refusal.LEFT:
                return errors.finished(trainer)
            case Refusal.TAKEN:
                return errors.taken(trainer)
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
            return errors.stranger(trainer)
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
            return errors.stranger(trainer)
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
            return errors.cut_off(member.number, since, member.step, bool(self._limits.rejoin))
        if found := self.silent():
            member, since = found
            if member.number in self._resets:
                return errors.cut_off(member.number, self._since(member.number), member.step)
            return errors.silent(member.number, since, member.step)
        if not self.complete and self.now > self._limits.join:
            return errors.absent(self.missing, self.now)
        return None

    def _lost(self) -> list[int]:
        """Trainers without a process, or without a connection for too long."""
        limit, found = self._limits.rejoin or self._limits.silence, list(self._ended)
        for trainer in self._resets:  # the first one is away for the longest time
            if self._since(trainer) < limit:
                break
            found.append(trainer)
        return found


# -- takeover ----------------------------------------------------------------------------------
class Succession:
    """One server's knowledge of former lives; `linger` is how many seconds it stays for repeats,
    where all trainers have finished before.
    """

    def __init__(
        self, endpoint: str, trainers: Trainers, policy: UpdatePolicy, linger: float
    ) -> None:
        self._endpoint = endpoint
        self._trainers = trainers
        self._policy = policy
        self._unproven = False  # whether none of the known trainers has come back yet
        self._early: dict[int, tuple[Arrived, float]] = {}  # by ticket: greetings that wait
        self._farewell = linger
        self._record = ""  # where this server's record ends
        self.linger = 0.0
        self.ungreeted: set[Life] = set()  # known lives that have not come back
        self.inherited: dict[int, list[Pushed]] = {}  # what former lives of trainers have pushed

    # -- of this server --------------------------------------------------------------------
    def resume(self, known: Known, calls: CountedCalls) -> None:
        """Go on with what the predecessor of this server has recorded."""
        self._unproven, self.linger = True, self._farewell
        self._record = known.end
        for trainer in known.trainers.values():
            life = trainer.number, trainer.incarnation
            self._trainers.hello(*life, trainer.beats)
            self.ungreeted.add(life)
            calls.skip(life, trainer.next)
            if trainer.left:
                self._trainers.leave(trainer.number)
                self._policy.leave(trainer.number)
        self._policy.resume(known.version, known.trainers)

    def forgotten(self, hello: m.Hello) -> m.Refused | None:
        """A refusal where a trainer has seen more than the record holds."""
        version = self._policy.version
        if not self.linger or hello.seen <= version:
            return None
        return errors.forgotten(self._endpoint, version, hello, self._record)

    def begins_anew(self, hello: m.Hello) -> bool:
        """Whether this greeting says that the job was started again as a whole."""
        if not self._unproven:
            return False
        member = self._trainers.get(hello.trainer)
        self._unproven = member is None
        return member is not None and member.life != hello.incarnation

    def goes_on(self) -> None:
        """A trainer has given a sign of life."""
        self._unproven = False

    # -- of trainers -----------------------------------------------------------------------
    def comes_early(self, life: Life, event: Arrived) -> bool:
        """Whether the greeting has to wait for the end of the former life; not for ever."""
        if self._trainers.follows(*life) and not self._trainers.is_away(life[0]):
            _, since = self._early.setdefault(event.ticket, (event, self._trainers.now))
            if self._trainers.now - since <= self._trainers.silence:
                return True
        self._early.pop(event.ticket, None)
        return False

    def waiting(self) -> list[Arrived]:
        """The greetings that have come early: each of them may try again."""
        return [event for event, _ in self._early.values()]

    def replaced(self, life: Life) -> Life | None:
        """The life whose place this one takes; None if it takes nobody's."""
        trainer, incarnation = life
        if not self._trainers.follows(*life) or not self._trainers.is_away(trainer):
            return None
        return trainer, self._trainers.succeed(trainer, incarnation)

    def inherit(self, trainer: int) -> list[Discard | Report]:
        """Another life of the trainer has taken its place."""
        older, pushed = self.inherited.get(trainer, []), self._policy.drop(trainer)
        if pushed:
            self.inherited[trainer] = pushed
        text = errors.came_back(self._endpoint, trainer, self._policy.passed(trainer))
        unused = [Discard(each.ticket) for each in older] if pushed else []
        return [*unused, Report(text)]

    def standing(self, trainer: int) -> tuple[int, int]:
        """How many barriers the trainer has passed, and how many pushes of a former life there are
        since.
        """
        return self._policy.passed(trainer), len(self.inherited.get(trainer, ()))

    def end_round(self, trainer: int, inherits: bool) -> list[Discard]:
        """A trainer's round ends, with what its former life has pushed (`inherits`) or without."""
        former = self.inherited.pop(trainer, [])
        unused = self._policy.drop(trainer) if inherits else former
        for pushed in former if inherits else ():
            self._policy.push(trainer, pushed)
        return [Discard(pushed.ticket) for pushed in unused]

    def departures(self) -> list[Report]:
        """News of trainers whose successors are waited for from now on."""
        away = self._trainers.newly_away()
        return [Report(errors.gone(self._endpoint, *member)) for member in away]


# -- the end ----------------------------------------------------------------------------------
class Farewell:
    """How long a failed server stays: until every trainer has heard of the failure, for a while at
    most. Trainers that are about to join hear of it too, unless the process itself must end.
    """

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
