"""Lives that continue others, as one server sees them.

A server that was killed is followed by one that knows the trainers of its record. The first sign of
one of them says that the job goes on; a trainer in another life, that it was started again as a
whole.

A trainer that was killed is followed by one with the same number. It is let in when the former
life is away: its connections have ended, or it has been silent for too long. What the former life
has pushed since its last barrier is put aside: a barrier of the successor's either uses it, or
drops it. Pure bookkeeping, for the core.
"""

from bireme.net import messages as m

from . import refusals
from .counted_calls import CountedCalls
from .events import Arrived, Discard, Report
from .job_record import Known
from .membership import Trainers
from .rounds import Pushed, UpdatePolicy

__all__ = ["Succession"]

Life = tuple[int, int]  # trainer, incarnation


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
        return refusals.forgotten(self._endpoint, version, hello, self._record)

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
        text = refusals.came_back(self._endpoint, trainer, self._policy.passed(trainer))
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
        return [Report(refusals.gone(self._endpoint, *member)) for member in away]
