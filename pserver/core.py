"""The server's state machine: `handle(event)` is the only door, instructions come out.

No socket, no thread, no clock, no array. What an update computes stands in the server's program;
the core decides when it runs, who waits and who is answered. Every counted call takes effect
once, in the trainer's order, however often and in whatever order it arrives. When the job fails,
the core first tells everybody, then says Fail.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from . import events as e
from . import failures
from .books import Books
from .flow import Arrival, Flow, Rounds
from .modes import mode_of
from .roll import Limits, Member, Roll
from .settings import Settings
from .sharing import Sharing

__all__ = ["Core"]

_KNOWN = 64  # payloads' names that are remembered
Counted = e.Push | e.Barrier | e.Pull | e.Prefetch | e.Share | e.Checkpoint
Gated = e.Pull | e.Prefetch | e.Checkpoint


@dataclass(slots=True)
class _Sequence:
    """One trainer's counted calls: the next one expected, and those that came before their turn."""

    next: int
    early: dict[int, Counted]


class Core:
    """One server. Calls are admitted in the order of their sequence numbers, each once."""

    def __init__(self, settings: Settings, limits: Limits | None = None) -> None:
        self._settings = settings
        self._limits = limits or Limits()
        self._mode = mode_of(settings)
        self._roll = Roll(settings.trainers, self._limits)
        self._flow: Flow = (
            Rounds(settings, self._roll.expected) if self._mode.rounds else Arrival(settings)
        )
        self._sequences: dict[tuple[int, int], _Sequence] = {}
        self._open: dict[e.Call, list[int]] = {}  # calls not answered yet, and the tickets that ask
        self._parked: dict[e.Call, tuple[Gated, float]] = {}
        self._awaiting: dict[int, list[e.Call]] = {}  # update -> pushes that it answers
        self._sharing = Sharing()
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}  # pushed -> in the program
        self._failure: e.Failure | None = None
        self._leave_at = 0.0
        self._ended = False
        self._out: list[e.Instruction] = []
        self.books = Books(self._mode.rounds)

    # -- what others may look at -----------------------------------------------------------
    @property
    def version(self) -> int:
        """How many updates have run."""
        return self._flow.version

    @property
    def now(self) -> float:
        """The time of the last tick."""
        return self._roll.now

    @property
    def waiting(self) -> int:
        """How many calls are parked."""
        return len(self._parked)

    @property
    def waited(self) -> float:
        """Seconds since the first of them was parked."""
        return max((self._roll.now - since for _, since in list(self._parked.values())), default=0)

    @property
    def missing(self) -> list[int]:
        """Trainers whom parked calls wait for."""
        return self._flow.missing() if self._parked else []

    @property
    def members(self) -> list[Member]:
        """Every trainer that has come."""
        return self._roll.members

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
        refusal = self._roll.hello(event.trainer, event.incarnation, event.beats)
        self._reply(
            event.ticket, refusal or e.Welcome(self._settings.mode, self._settings.trainers)
        )

    def _heartbeat(self, event: e.Heartbeat) -> None:
        refusal = self._roll.hear(event.trainer, event.incarnation, event.step)
        self._reply(event.ticket, refusal or e.Accepted())

    def _complete(self, event: e.Complete) -> None:
        refusal = self._roll.hear(event.trainer, event.incarnation)
        if refusal is None:
            for member in self._roll.active:
                member.done |= member.trainer == event.trainer
            self._out += [e.Discard(ticket) for ticket in self._flow.leave(event.trainer)]
        self._reply(event.ticket, refusal or e.Accepted())

    def _abort(self, event: e.Abort) -> None:
        mine = event.trainer < 0
        peer = f"server {self._settings.endpoint}" if mine else f"trainer {event.trainer}"
        self._reply(event.ticket, e.Accepted())
        self._fail(failures.gave_up(peer, event.cause, event.step))
        member = self._roll.member(event.trainer)
        if member is not None:
            member.told = True

    def _tick(self, event: e.Tick) -> None:
        lost = self._roll.tick(event.now)
        if lost is not None and self._failure is None:
            self._fail(self._with_waiters(lost))
        for call, (_, since) in list(self._parked.items()):
            if event.now - since > self._limits.patience:
                self._answer(call, self._too_late())
        absent = self._sharing.missing(self._roll.expected())
        for late in self._sharing.late(event.now, self._limits.patience):
            self._discard(late)
            self._answer(late.call, failures.slow(absent, late.step, self._limits.patience))

    def _with_waiters(self, lost: e.Failure) -> e.Failure:
        waiting = sorted({call.trainer for call in self._parked})
        where = f"; {failures.trainers_named(waiting)} waited for it" if waiting else ""
        return replace(lost, text=f"{lost.text}{where} (server {self._settings.endpoint})")

    def _too_late(self) -> e.Failure:
        return failures.slow(self._flow.missing(), self.version + 1, self._limits.patience)

    # -- counted calls ---------------------------------------------------------------------
    def _counted(self, event: Counted) -> None:
        """Admit a call if it is the trainer's next; keep it if it is early; answer a repeat as
        the first.
        """
        call = event.call
        refusal = self._roll.hear(call.trainer, call.incarnation, getattr(event, "step", None))
        if refusal is not None:
            self._refuse_call(event, refusal)
            return
        sequence = self._sequences.setdefault(call[:2], _Sequence(1, {}))
        if call in self._open:
            self._open[call].append(event.ticket)
            self._discard(event)
        elif call.sequence < sequence.next:
            self._repeat(event)
        else:
            self._open[call] = [event.ticket]
            sequence.early[call.sequence] = event
            while sequence.next in sequence.early and self._failure is None:
                sequence.next += 1
                self._admit(sequence.early.pop(sequence.next - 1))

    def _repeat(self, event: Counted) -> None:
        self.books.repeats += 1
        if isinstance(event, e.Push | e.Barrier | e.Checkpoint):
            self._discard(event)
            self._reply(event.ticket, e.Accepted())
        elif isinstance(event, e.Share):
            self._discard(event)
            self._reply(event.ticket, self._sharing.answered(event.call.trainer) or e.Accepted())
        else:  # reading again is harmless: the trainer's round is still the open one
            self._open[event.call] = [event.ticket]
            self._read(event)

    def _admit(self, event: Counted) -> None:
        match event:
            case e.Push():
                self._push(event)
            case e.Barrier():
                self._barrier(event)
            case e.Share():
                self._sharing.add(event, self._roll.now)
            case e.Pull() if self._flow.half_pushed(event.call.trainer) and event.gated:
                self._answer(
                    event.call, failures.needs_barrier(self._settings.endpoint, event.call.trainer)
                )
            case _:
                self._read(event)

    def _push(self, event: e.Push) -> None:
        names = self._names.get(event.names)
        if names is None:
            names = tuple(self._settings.bound(name) for name in event.names)
            if unknown := self._settings.unknown(names):
                self._discard(event)
                refusal = failures.not_owned(
                    self._settings.endpoint, unknown[0], self._settings.gradients
                )
                self._answer(event.call, refusal)
                return
            if len(self._names) >= _KNOWN:
                self._names.clear()
            self._names[event.names] = names
        self.books.pushed(event.call.trainer, event.step, len(names))
        number = self._flow.push(event.call.trainer, (event.ticket, names))
        if number is None:
            self._answer(event.call, e.Accepted())
        else:
            self._awaiting.setdefault(number, []).append(event.call)

    def _barrier(self, event: e.Barrier) -> None:
        if not self._mode.rounds:
            self._answer(
                event.call, failures.takes_no_barrier(self._settings.endpoint, self._mode.name)
            )
            return
        self._flow.barrier(event.call.trainer)
        self._answer(event.call, e.Accepted())

    def _read(self, event: Gated) -> None:
        gated = not isinstance(event, e.Pull) or event.gated
        if gated and self._flow.waits(event.call.trainer):
            self._parked[event.call] = (event, self._roll.now)
            return
        if isinstance(event, e.Checkpoint):
            self._out.append(e.Save(event.ticket))
            self._answer(event.call, e.Accepted())
            return
        names = event.names if isinstance(event, e.Pull) else event.tables
        if self._mode.snapshots and isinstance(event, e.Pull) and gated:
            self._out.append(e.Snapshot(event.call.trainer, names))
        self.books.pulled(event.call.trainer)
        self._answer(event.call, e.Send(names, self.version))

    # -- updates ---------------------------------------------------------------------------
    def _applied(self, event: e.Applied) -> None:
        self._flow.applied(event.number)
        for call in self._awaiting.pop(event.number, ()):
            self._answer(call, e.Accepted())

    def _broken(self, event: e.Broken) -> None:
        me = f"server {self._settings.endpoint}"
        self._fail(failures.broken(me, event.number, event.cause))

    def _advance(self) -> None:
        """Start what is due, answer what need not wait any more."""
        if self._failure is not None:
            return
        for call, (event, _) in list(self._parked.items()):
            if not self._flow.waits(call.trainer):
                del self._parked[call]
                self._read(event)
        while (apply := self._flow.due()) is not None:
            self._out.append(apply)
        come, shared = self._sharing.complete(self._roll.expected())
        for share in come:
            self._answer(share.call, shared or e.Accepted())

    # -- the end ---------------------------------------------------------------------------
    def _fail(self, failure: e.Failure) -> None:
        self._failure = failure
        self._leave_at = self._roll.now + self._limits.farewell
        for call in list(self._open):
            self._answer(call, failure)
            self._tell(call.trainer)

    def _turn_away(self, event: e.Event) -> None:
        """After the failure every call is answered with it."""
        ticket = getattr(event, "ticket", None)
        if ticket is None:
            return
        assert self._failure is not None
        if isinstance(event, Counted):
            self._discard(event)
        self._reply(ticket, self._failure)
        self._tell(getattr(getattr(event, "call", event), "trainer", -1))

    def _tell(self, trainer: int) -> None:
        member = self._roll.member(trainer)
        if member is not None:
            member.told = True

    def _end_if_possible(self) -> None:
        if self._ended:
            return
        if self._failure is None:
            self._ended = self._roll.finished
            self._out += [e.Finish()] if self._ended else []
            return
        everybody = all(m.told or self._is_lost(m.trainer) for m in self._roll.active)
        if everybody or self._roll.now >= self._leave_at:
            self._ended = True
            self._out.append(e.Fail(self._failure))

    def _is_lost(self, trainer: int) -> bool:
        assert self._failure is not None
        return self._failure.kind == "PeerLost" and self._failure.peer == f"trainer {trainer}"

    # -- answers ---------------------------------------------------------------------------
    def _answer(self, call: e.Call, answer: e.Answer) -> None:
        self._parked.pop(call, None)
        for ticket in self._open.pop(call, ()):
            self._reply(ticket, answer)

    def _reply(self, ticket: int, answer: e.Answer) -> None:
        self._out.append(e.Reply(ticket, answer))

    def _refuse_call(self, event: Counted, refusal: e.Failure) -> None:
        self._discard(event)
        self._reply(event.ticket, refusal)

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
        e.Tick: _tick,
        e.Applied: _applied,
        e.Broken: _broken,
    }
