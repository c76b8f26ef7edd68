"""The server's state machine: `handle(event)` gives instructions. No socket, thread, clock, array.

Theory of operation. What an update computes stands in the server's program; the core decides when
it runs, who waits, and who is answered.

* Who takes part is the membership's knowledge. A trainer's messages count in one life of it only.
* A counted call passes through the states of `counted_calls.TRANSITIONS`: it is EARLY until every
  earlier call of its trainer is ADMITTED. A push then joins an update; a barrier closes the
  trainer's round; a read is answered, or PARKED while the trainer's round is open. ANSWERED and
  REFUSED are final: a repeat gets the same again, except that a read reads again.
* When updates run is the mode's rule: `rounds` or `arrival`. An update that a call makes due is
  started before the next call is admitted, so a read sees every push that was admitted before it.
* A failure is final and answers every call; `Finish` follows when everybody has heard it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from . import events as e
from . import refusals
from .allgather import AllGather
from .arrival import Arrival
from .counted_calls import Counted, CountedCalls, Gated, State
from .farewell import Farewell
from .job_record import Known
from .leases import Leases
from .membership import Limits, Member, Trainers
from .metrics import Metrics
from .modes import mode_of
from .push_names import PushNames
from .rounds import Pushed, Rounds, UpdatePolicy
from .server_spec import Settings
from .succession import Succession

__all__ = ["Core"]


class Core:
    """One server. Calls are admitted in the order of their sequence numbers, each once."""

    def __init__(
        self, settings: Settings, limits: Limits | None = None, known: Known | None = None
    ) -> None:
        """`known`: what the predecessor of this server has recorded."""
        self._settings = settings
        self._limits = limits or Limits()
        self._mode = mode_of(settings)
        self._trainers = Trainers(settings.trainers, self._limits)
        self._policy: UpdatePolicy = Rounds(settings) if self._mode.rounds else Arrival(settings)
        self._calls = CountedCalls(self._limits.early)
        self._awaiting: dict[int, list[e.Call]] = {}  # update -> pushes that it answers
        self._gathering = AllGather(self._trainers.expected)
        self._names = PushNames(settings)
        self._compiled: set[int] = set()  # blocks that have run
        self._farewell = Farewell(self._trainers, self._limits)
        self._ended = False
        self._out: list[e.Instruction] = []
        self.metrics = Metrics(self._mode.rounds)
        self.leases = Leases()
        self._succession = Succession(
            settings.endpoint, self._trainers, self._policy, self._limits.farewell
        )
        if known is not None:
            self._succession.resume(known, self._calls)
            self._gathering.resume(known.gathered[0])

    # -- what others may look at -----------------------------------------------------------
    @property
    def version(self) -> int:
        """How many updates have run."""
        return self._policy.version

    @property
    def now(self) -> float:
        """The time of the last tick."""
        return self._trainers.now

    @property
    def grace(self) -> float:
        """Seconds that a trainer has to come back after its connections have ended."""
        return self._limits.grace

    @property
    def waiting(self) -> int:
        """How many calls are parked."""
        return len(self._calls.parked)

    @property
    def waited(self) -> float:
        """Seconds since the first of them was parked."""
        since = self._calls.parked_since()
        return 0.0 if since is None else self._trainers.now - since

    @property
    def missing(self) -> list[int]:
        """Trainers whom parked calls wait for."""
        return self._policy.missing() if self._calls.parked else []

    @property
    def members(self) -> list[Member]:
        """Every trainer that has come."""
        return self._trainers.members

    def handle(self, event: e.Event) -> tuple[e.Instruction, ...]:
        """Take one event; what is to be done now, in order."""
        self._out = []
        if self._failure is None or isinstance(event, e.Tick):
            self._HANDLERS[type(event)](self, event)
            self._advance()
        else:
            self._turn_away(event)
        self._end_if_possible()
        return tuple(self._out)

    # -- attendance ------------------------------------------------------------------------
    def _hello(self, event: e.Hello) -> None:
        if (refusal := refusals.other_size(self._settings, event)) is not None:
            if self._trainers.missing:  # the trainer is one of them: the job cannot begin
                self._fail(refusal)
                self._turn_away(event)
                return
            self._out += [e.Reply(event.ticket, refusal), e.Report(refusal.text)]
            return
        if self._succession.begins_anew(event):
            self._ended = True
            self._out.append(e.StartOver())
            return
        if self._succession.comes_early(event):
            return
        if (former := self._succession.replaced(event)) is not None:
            self._take_over(former)
        refusal = self._trainers.hello(event.trainer, event.incarnation, event.beats)
        refusal = refusal or self._succession.forgotten(event)
        if refusal is None:
            life = event.trainer, event.incarnation
            self._calls.skip(life, event.first)
            self._succession.ungreeted.discard(life)
        welcome = e.Welcome(self._settings.mode, *self._succession.standing(event.trainer))
        self._reply(event.ticket, refusal or welcome)

    def _take_over(self, former: tuple[int, int]) -> None:
        """A trainer was started again: what its former life has under way counts no more."""
        for event in self._calls.unfinished(former):
            self._discard(event)
            self._answer(event.call, refusals.superseded(former[0]))
        self._gathering.forget(former[0])
        self.leases.left(former[0])
        self._out += self._succession.inherit(former[0])

    def _heartbeat(self, event: e.Heartbeat) -> None:
        refusal = self._trainers.beat(event.trainer, event.incarnation, event.step)
        if refusal is None:
            self._succession.goes_on()
        self._reply(event.ticket, refusal or e.Accepted())

    def _complete(self, event: e.Complete) -> None:
        refusal = self._trainers.sign(event.trainer, event.incarnation)
        if refusal is None:
            self._trainers.leave(event.trainer)
            self.leases.left(event.trainer)
            self._gathering.leave(event.trainer)
            self._out += [e.Discard(p.ticket) for p in self._policy.leave(event.trainer)]
        self._reply(event.ticket, refusal or e.Accepted())

    def _leased(self, event: e.Leased) -> None:
        self.leases.told(event.region, event.call)

    def _abort(self, event: e.Abort) -> None:
        me = f"server {self._settings.endpoint}"
        peer = me if event.trainer < 0 else f"trainer {event.trainer}"
        if event.trainer >= 0 and not self._trainers.is_member(event.trainer, event.incarnation):
            self._reply(event.ticket, refusals.superseded(event.trainer))
            return
        self._reply(event.ticket, e.Accepted())
        if event.peer:  # it was told so itself: one failure has one name everywhere
            self._fail(refusals.reported(event, peer))
        else:
            self._fail(refusals.gave_up(peer, event.cause, event.step))
        if event.trainer < 0:
            self._farewell.cut_short()  # this process must go
        self._farewell.tell(event.trainer)

    def _reset(self, event: e.Reset) -> None:
        self._trainers.reset(event.trainer, event.incarnation, event.ended)

    def _tick(self, event: e.Tick) -> None:
        self._trainers.tick(event.now)
        if self._failure is not None:
            return
        for waiting in self._succession.waiting():
            self._hello(waiting)
        self._out += self._succession.departures()
        lost = self._trainers.overdue()
        if lost is not None:
            waiters = {call.trainer for call in self._calls.parked}
            self._fail(refusals.with_waiters(lost, waiters, self._settings.endpoint))
            return
        self._refuse_late()

    def _refuse_late(self) -> None:
        """No call waits for longer than the deadlines allow."""
        patience = self._limits.patience
        if self.waited > patience:
            refusal = refusals.slow(self._policy.missing(), self.version + 1, patience)
            while self.waited > patience:
                self._answer(next(iter(self._calls.parked)), refusal)
        absent = self._gathering.missing()
        for late in self._gathering.late(self.now, patience):
            self._discard(late)
            self._answer(late.call, refusals.slow(absent, late.step, patience))

    # -- counted calls ---------------------------------------------------------------------
    def _counted(self, event: Counted) -> None:
        """Admit a call in its turn; take its repeat for the same call."""
        call = event.call
        refusal = self._trainers.sign(call.trainer, call.incarnation, getattr(event, "step", None))
        if refusal is None and call[:2] in self._succession.ungreeted:
            refusal = refusals.not_greeted(self._settings.endpoint, call.trainer)
        if refusal is None and (missing := self._calls.missing(call)):
            refusal = refusals.too_early(call, missing)
        if refusal is not None:
            self._discard(event)
            self._reply(event.ticket, refusal)
            return
        self.leases.heard(call)
        if self._calls.state(call) is not State.NEW:
            self._repeat(event)
            return
        self._calls.arrive(event)
        while self._failure is None and (due := self._calls.turn(call[:2])) is not None:
            self._admit(due)
            self._start_updates()

    def _repeat(self, event: Counted) -> None:
        state = self._calls.state(event.call)
        self.metrics.repeats += state in (State.ANSWERED, State.REFUSED)
        if state is State.ANSWERED and isinstance(event, e.Pull | e.Prefetch):
            self._calls.reread(event)  # harmless: the trainer's round is still the open one
            self._read(event)
            return
        refusal = self._calls.repeat(event)
        self._discard(event)
        if refusal is not None:
            self._reply(event.ticket, refusal)
        elif state is State.ANSWERED:
            again = self._gathering.answered(event.call) if isinstance(event, e.Share) else None
            self._reply(event.ticket, again or e.Accepted())

    def _admit(self, event: Counted) -> None:
        match event:
            case e.Push():
                self._push(event)
            case e.Barrier():
                self._barrier(event)
            case e.Share():
                self._gathering.add(event, self._trainers.now)
            case e.Checkpoint() if event.fault:
                self._discard(event)
                self._answer(event.call, refusals.wrong_data(event.fault))
            case e.Pull() if self._policy.half_pushed(event.call.trainer) and event.gated:
                self._answer(
                    event.call, refusals.needs_barrier(self._settings.endpoint, event.call.trainer)
                )
            case _:
                self._read(event)

    def _push(self, event: e.Push) -> None:
        names = self._names.of(event)
        if isinstance(names, e.Failure):
            self._discard(event)
            self._answer(event.call, names)
            return
        self.metrics.pushed(event.call.trainer, event.step, len(names))
        number = self._policy.push(event.call.trainer, Pushed(event.ticket, names, event.size))
        if number is None:
            self._answer(event.call, e.Accepted())
        else:
            self._awaiting.setdefault(number, []).append(event.call)

    def _barrier(self, event: e.Barrier) -> None:
        if not self._mode.rounds:
            self._answer(
                event.call, refusals.takes_no_barrier(self._settings.endpoint, self._mode.name)
            )
            return
        if self._succession.inherited:
            self._out += self._succession.settle(event)
        self._policy.barrier(event.call)
        self._answer(event.call, e.Accepted())

    def _read(self, event: Gated) -> None:
        gated = not isinstance(event, e.Pull) or event.gated
        if gated and self._policy.waits(event.call.trainer):
            number = self._policy.passed(event.call.trainer)
            self._calls.park(event.call, number, self._trainers.now)
            return
        if isinstance(event, e.Checkpoint):
            trainers = tuple(self._trainers.expected()) if self._mode.rounds else ()
            self._out.append(e.Save(event.ticket, trainers))
            self._answer(event.call, e.Accepted())
            return
        names = event.names if isinstance(event, e.Pull) else event.tables
        if self._mode.snapshots and isinstance(event, e.Pull) and gated:
            self._out.append(e.Snapshot(event.call.trainer, names, event.size))
        self.metrics.pulled(event.call.trainer)
        self._answer(event.call, e.Send(names, self.version, event.size))

    # -- updates ---------------------------------------------------------------------------
    def _applied(self, event: e.Applied) -> None:
        self._policy.applied(event.number)
        for read in self._calls.resume(self.version):
            self._read(read)
        for call in self._awaiting.pop(event.number, ()):
            self._answer(call, e.Accepted())

    def _broken(self, event: e.Broken) -> None:
        server = f"server {self._settings.endpoint}"
        self._fail(refusals.broken(server, event.number, event.cause))

    def _advance(self) -> None:
        """Start the updates that are due, answer gatherings that are complete."""
        if self._failure is not None:
            return
        self._start_updates()
        come, shared = self._gathering.complete()
        for share in come:
            self._answer(share.call, shared or e.Accepted())

    def _start_updates(self) -> None:
        while (apply := self._policy.due()) is not None:
            first = not self._compiled.issuperset(apply.blocks)
            self._compiled.update(apply.blocks)
            self._out.append(replace(apply, first=True) if first else apply)

    # -- the end ---------------------------------------------------------------------------
    @property
    def _failure(self) -> e.Failure | None:
        return self._trainers.failure

    def _fail(self, failure: e.Failure) -> None:
        self._trainers.blame(failure)
        self._farewell.begin(failure)
        self._out.append(e.Fail(failure))
        reading = set(self._calls.parked)
        for call in [event.call for event in self._calls.unfinished()]:
            self._answer(call, failure)
            if call in reading:  # others may not have asked for an answer
                self._farewell.tell(call.trainer)

    def _turn_away(self, event: e.Event) -> None:
        """After the failure every call is answered with it."""
        ticket = getattr(event, "ticket", None)
        if ticket is None:
            return
        assert self._failure is not None
        if isinstance(event, Counted):
            self._discard(event)
        self._reply(ticket, self._failure)
        self._farewell.tell(getattr(getattr(event, "call", event), "trainer", -1))

    def _end_if_possible(self) -> None:
        if self._ended:
            return
        if self._failure is None:
            self._ended = self._trainers.finished and self.now >= self._succession.linger
        else:
            self._ended = self._farewell.is_over()
        self._out += [e.Finish()] if self._ended else []

    # -- answers ---------------------------------------------------------------------------
    def _answer(self, call: e.Call, answer: e.Answer) -> None:
        if isinstance(answer, e.Failure):
            tickets = self._calls.refuse(call, answer)
        else:
            tickets = self._calls.answer(call)
        for ticket in tickets:
            self._reply(ticket, answer)

    def _reply(self, ticket: int, answer: e.Answer) -> None:
        self._out.append(e.Reply(ticket, answer))

    def _discard(self, event: Counted) -> None:
        if isinstance(event, e.Push | e.Share | e.Checkpoint):
            self._out.append(e.Discard(event.ticket))

    _HANDLERS: ClassVar[dict[type, Callable[..., Any]]] = {
        e.Hello: _hello,
        e.Push: _counted,
        e.Barrier: _counted,
        e.Pull: _counted,
        e.Prefetch: _counted,
        e.Share: _counted,
        e.Checkpoint: _counted,
        e.Heartbeat: _heartbeat,
        e.Complete: _complete,
        e.Abort: _abort,
        e.Reset: _reset,
        e.Leased: _leased,
        e.Tick: _tick,
        e.Applied: _applied,
        e.Broken: _broken,
    }
