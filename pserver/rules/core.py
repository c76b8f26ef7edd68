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
from typing import Any, ClassVar

import msgspec

from bireme.net import messages as m

from ..journal.records import Known
from . import errors
from . import events as e
from .calls import AllGather, CountedCalls, PushNames, Row, State, TooEarly
from .leases import Leases
from .members import Farewell, Limits, Succession, Trainers
from .metrics import Metrics
from .rounds import Arrival, Pushed, Rounds, UpdatePolicy, mode_of
from .server_spec import Settings

__all__ = ["CALLS", "Core"]

ACCEPTED = m.Accepted()


class Core:
    """One server. Calls are admitted in the order of their sequence numbers, each once."""

    def __init__(
        self, settings: Settings, limits: Limits | None = None, known: Known | None = None
    ) -> None:
        """`known`: what the predecessor of this server has recorded."""
        self._settings = settings
        self.limits = limits or Limits()
        self._mode = mode_of(settings)
        self.trainers = Trainers(settings.trainers, self.limits)
        self.policy: UpdatePolicy = Rounds(settings) if self._mode.rounds else Arrival(settings)
        self.calls = CountedCalls(self.limits.early)
        self._awaiting: dict[int, list[e.Call]] = {}  # update -> pushes that it answers
        self._gathering = AllGather(self.trainers.expected)
        self._names = PushNames(settings)
        self._compiled: set[int] = set()  # blocks that have run
        self._farewell = Farewell(self.trainers, self.limits)
        self._ended = False
        self._out: list[e.Instruction] = []
        self.metrics = Metrics(self._mode.rounds)
        self.leases = Leases()
        self._succession = Succession(
            settings.endpoint, self.trainers, self.policy, self.limits.farewell
        )
        if known is not None:
            self._succession.resume(known, self.calls)
            self._gathering.resume(known.gathered[0])

    # -- what others may look at -----------------------------------------------------------
    @property
    def version(self) -> int:
        """How many updates have run."""
        return self.policy.version

    @property
    def waited(self) -> float:
        """Seconds since the first of the parked calls was parked."""
        since = self.calls.parked_since()
        return 0.0 if since is None else self.trainers.now - since

    def handle(self, event: e.Event) -> tuple[e.Instruction, ...]:
        """Take one event; what is to be done now, in order."""
        self._out = []
        if self._failure is not None and not isinstance(event, e.Tick):
            self._turn_away(event)
        elif isinstance(event, e.Arrived):
            row = CALLS[type(event.message)]
            if isinstance(event.message, m.Numbered):
                self._counted(event, event.message, row)
            else:
                row.handle(self, event, event.message)
        else:
            self._HANDLERS[type(event)](self, event)
        return tuple(self._out)

    # -- attendance ------------------------------------------------------------------------
    def _hello(self, event: e.Arrived, hello: m.Hello) -> None:
        if (refusal := errors.other_size(self._settings, hello)) is not None:
            if self.trainers.missing:  # the trainer is one of them: the job cannot begin
                self._fail(refusal)
                self._turn_away(event)
                return
            self._out += [e.Reply(event.ticket, refusal), e.Report(refusal.text)]
            return
        if self._succession.begins_anew(hello):
            self._ended = True
            self._out.append(e.StartOver())
            return
        life = hello.trainer, hello.incarnation
        if self._succession.comes_early(life, event):
            return
        if (former := self._succession.replaced(life)) is not None:
            self._take_over(former)
        refusal = self.trainers.hello(*life, hello.beats)
        if refusal is None and (refusal := self._succession.forgotten(hello)) is not None:
            self._fail(refusal)  # the server's failure: nobody is to look for the trainer's
            self._turn_away(event)
            return
        if refusal is None:
            self.calls.skip(life, hello.first)
            self._succession.ungreeted.discard(life)
        passed, pushed = self._succession.standing(hello.trainer)
        welcome = m.Welcome(mode=self._settings.mode, incarnation=0, passed=passed, pushed=pushed)
        self._reply(event.ticket, refusal or welcome)

    def _take_over(self, former: tuple[int, int]) -> None:
        """A trainer was started again: what its former life has under way counts no more."""
        for event in self.calls.unfinished(former):
            self._discard(event)
            self._answer(event.call, errors.superseded(former[0]))
        self._gathering.forget(former[0])
        self.leases.left(former[0])
        self._out += self._succession.inherit(former[0])

    def _heartbeat(self, event: e.Arrived, beat: m.Heartbeat) -> None:
        refusal = self.trainers.beat(beat.trainer, beat.incarnation, beat.step)
        if refusal is None:
            self._succession.goes_on()
        self._reply(event.ticket, refusal or ACCEPTED)

    def _complete(self, event: e.Arrived, done: m.Complete) -> None:
        refusal = self.trainers.sign(done.trainer, done.incarnation)
        if refusal is None:
            self.trainers.leave(done.trainer)
            self.leases.left(done.trainer)
            self._gathering.leave(done.trainer)
            self._out += [e.Discard(p.ticket) for p in self.policy.leave(done.trainer)]
        self._reply(event.ticket, refusal or ACCEPTED)
        self._start_updates()
        self._complete_gathering()
        self._end_if_possible()

    def _abort(self, event: e.Arrived, abort: m.Abort) -> None:
        me = f"server {self._settings.endpoint}"
        peer = me if abort.trainer < 0 else f"trainer {abort.trainer}"
        if abort.trainer >= 0 and not self.trainers.is_member(abort.trainer, abort.incarnation):
            self._reply(event.ticket, errors.superseded(abort.trainer))
            return
        self._reply(event.ticket, ACCEPTED)
        if abort.peer:  # it was told so itself: one failure has one name everywhere
            self._fail(errors.reported(abort, peer))
        else:
            self._fail(errors.gave_up(peer, abort.cause, abort.step))
        if abort.trainer < 0:
            self._farewell.cut_short()  # this process must go
        self._farewell.tell(abort.trainer)
        self._end_if_possible()

    def _reset(self, event: e.Reset) -> None:
        self.trainers.reset(event.trainer, event.incarnation, event.ended)

    def _tick(self, event: e.Tick) -> None:
        self.trainers.tick(event.now)
        if self._failure is None:
            self._look_for_losses()
            self._start_updates()  # a schedule's first step waits for nothing
        self._end_if_possible()

    def _look_for_losses(self) -> None:
        for waiting in self._succession.waiting():
            assert isinstance(waiting.message, m.Hello)
            self._hello(waiting, waiting.message)
        self._out += self._succession.departures()
        lost = self.trainers.overdue()
        if lost is not None:
            waiters = {call.trainer for call in self.calls.parked}
            self._fail(errors.with_waiters(lost, waiters, self._settings.endpoint))
        else:
            self._refuse_late()

    def _refuse_late(self) -> None:
        """No call waits for longer than the deadlines allow."""
        patience = self.limits.patience
        if self.waited > patience:
            refusal = errors.slow(self.policy.missing(), self.version + 1, patience)
            while self.waited > patience:
                self._answer(next(iter(self.calls.parked)), refusal)
        absent = self._gathering.missing()
        for late in self._gathering.late(self.trainers.now, patience):
            assert isinstance(late.message, m.Share)
            self._discard(late)
            self._answer(late.call, errors.slow(absent, late.message.step, patience))

    # -- counted calls ---------------------------------------------------------------------
    def _counted(self, event: e.Arrived, said: m.Numbered, row: Row) -> None:
        """Admit a call in its turn; take its repeat for the same call."""
        call = event.call
        try:
            refusal = self.trainers.sign(call.trainer, call.incarnation, said.step)
            if refusal is None and call[:2] in self._succession.ungreeted:
                refusal = errors.not_greeted(self._settings.endpoint, call.trainer)
            due = self.calls.arrive(event) if refusal is None else []
        except TooEarly as error:
            due, refusal = [], errors.too_early(call, error.missing)
        if refusal is not None:
            self._discard(event)
            self._reply(event.ticket, refusal)
            return
        if call.trainer in self.leases.held:
            self.leases.heard(call)
        if due is None:
            self._repeat(event, row)
            return
        for each in due:
            if self._failure is None:
                CALLS[type(each.message)].handle(self, each, each.message)

    def _repeat(self, event: e.Arrived, row: Row) -> None:
        state = self.calls.state(event.call)
        self.metrics.repeats += state in (State.ANSWERED, State.REFUSED)
        if state is State.ANSWERED and row.reads:
            self.calls.reread(event)  # harmless: the trainer's round is still the open one
            row.handle(self, event, event.message)
            return
        refusal = self.calls.repeat(event)
        self._discard(event)
        if refusal is not None:
            self._reply(event.ticket, refusal)
        elif state is State.ANSWERED:
            self._reply(event.ticket, self._gathering.answered(event.call) or ACCEPTED)

    def _push(self, event: e.Arrived, push: m.Push) -> None:
        names = None if event.fault else self._names.known.get((push.trainer, event.names))
        if names is None:
            found = self._names.of(event)
            if isinstance(found, m.Refused):
                self._discard(event)
                self._answer(event.call, found)
                return
            names = found
        self.metrics.pushed(push.trainer, push.step, len(names))
        number = self.policy.push(push.trainer, Pushed(event.ticket, names, event.size))
        if number is None:
            self._answer(event.call, ACCEPTED)
        else:
            self._awaiting.setdefault(number, []).append(event.call)
            self._start_updates()

    def _barrier(self, event: e.Arrived, barrier: m.Barrier) -> None:
        if not self._mode.rounds:
            endpoint, mode = self._settings.endpoint, self._mode.name
            self._answer(event.call, errors.takes_no_barrier(endpoint, mode))
            return
        if self._succession.inherited:
            self._out += self._succession.end_round(barrier.trainer, barrier.inherits)
        self.policy.barrier(event.call)
        self._answer(event.call, ACCEPTED)
        self._start_updates()

    def _share(self, event: e.Arrived, share: m.Share) -> None:
        self._gathering.add(event, self.trainers.now)
        self._complete_gathering()

    def _complete_gathering(self) -> None:
        come, shared = self._gathering.complete()
        for share in come:
            self._answer(share.call, shared or ACCEPTED)

    def _pull(self, event: e.Arrived, pull: m.Pull) -> None:
        trainer = pull.trainer
        if pull.gated and self.policy.half_pushed(trainer):
            self._answer(event.call, errors.needs_barrier(self._settings.endpoint, trainer))
        elif not (pull.gated and self._parks(event)):
            if self._mode.snapshots and pull.gated:
                self._out.append(e.Snapshot(trainer, event.names, event.size))
            self._send(event)

    def _look_up(self, event: e.Arrived, asked: m.Lookup) -> None:
        if not self._parks(event):
            self._send(event)

    def _send(self, event: e.Arrived) -> None:
        self.metrics.pulled(event.call.trainer)
        self._answer(event.call, e.Send(event.names, self.version, event.size))

    def _save(self, event: e.Arrived, save: m.Save) -> None:
        if event.fault:
            self._discard(event)
            self._answer(event.call, errors.wrong_data(event.fault))
        elif not self._parks(event):
            trainers = self.trainers.expected() if self._mode.rounds else ()
            self._out.append(e.Save(event.ticket, trainers))
            self._answer(event.call, ACCEPTED)

    def _parks(self, event: e.Arrived) -> bool:
        """Whether a read has to wait until its trainer's round is over."""
        trainer = event.call.trainer
        if not self.policy.waits(trainer):
            return False
        self.calls.park(event.call, self.policy.passed(trainer), self.trainers.now)
        return True

    # -- updates ---------------------------------------------------------------------------
    def _applied(self, event: e.Applied) -> None:
        self.policy.applied(event.number)
        for read in self.calls.resume(self.version):
            CALLS[type(read.message)].handle(self, read, read.message)
        for call in self._awaiting.pop(event.number, ()):
            self._answer(call, ACCEPTED)
        self._start_updates()

    def _broken(self, event: e.Broken) -> None:
        self._fail(errors.broken(f"server {self._settings.endpoint}", event.number, event.cause))

    def _start_updates(self) -> None:
        while (apply := self.policy.due()) is not None:
            first = not self._compiled.issuperset(apply.blocks)
            self._compiled.update(apply.blocks)
            self._out.append(msgspec.structs.replace(apply, first=True) if first else apply)

    # -- the end ---------------------------------------------------------------------------
    @property
    def _failure(self) -> m.Refused | None:
        return self.trainers.failure

    def _fail(self, failure: m.Refused) -> None:
        self.trainers.blame(failure)
        self._farewell.begin(failure)
        self._out.append(e.Fail(failure))
        reading = set(self.calls.parked)
        for call in [event.call for event in self.calls.unfinished()]:
            self._answer(call, failure)
            if call in reading:  # others may not have asked for an answer
                self._farewell.tell(call.trainer)

    def _turn_away(self, event: e.Event) -> None:
        """After the failure every call is answered with it."""
        if isinstance(event, e.Arrived):
            assert self._failure is not None
            self._discard(event)
            self._reply(event.ticket, self._failure)
            self._farewell.tell(getattr(event.message, "trainer", -1))
            self._end_if_possible()

    def _end_if_possible(self) -> None:
        if self._ended:
            return
        if self._failure is None:
            self._ended = self.trainers.finished and self.trainers.now >= self._succession.linger
        else:
            self._ended = self._farewell.is_over()
        self._out += [e.Finish()] if self._ended else []

    # -- answers ---------------------------------------------------------------------------
    def _answer(self, call: e.Call, answer: e.Answer) -> None:
        if isinstance(answer, m.Refused):
            tickets = self.calls.refuse(call, answer)
        else:
            tickets = self.calls.answer(call)
        self._out += [e.Reply(ticket, answer) for ticket in tickets]

    def _reply(self, ticket: int, answer: e.Answer) -> None:
        self._out.append(e.Reply(ticket, answer))

    def _discard(self, event: e.Arrived) -> None:
        if CALLS[type(event.message)].keeps:
            self._out.append(e.Discard(event.ticket))

    _HANDLERS: ClassVar[dict[type, Callable[..., Any]]] = {
        e.Reset: _reset,
        e.Tick: _tick,
        e.Applied: _applied,
        e.Broken: _broken,
    }


CALLS: dict[type[m.Message], Row] = {
    m.Push: Row(Core._push, keeps=True),
    m.Barrier: Row(Core._barrier),
    m.Pull: Row(Core._pull, reads=True),
    m.Lookup: Row(Core._look_up, reads=True),
    m.Share: Row(Core._share, keeps=True),
    m.Save: Row(Core._save, keeps=True),
    m.Hello: Row(Core._hello),
    m.Heartbeat: Row(Core._heartbeat),
    m.Complete: Row(Core._complete),
    m.Abort: Row(Core._abort),
}
