"""Counted calls: each takes effect once, in its trainer's order, however often and in whatever
order its frames arrive; the names of what they push, and gatherings of what they share.

A call is named by trainer, incarnation and number; numbers begin at 1. `TRANSITIONS` holds
everything that can happen to one:

    NEW --> EARLY --> ADMITTED <--> PARKED         any of EARLY, ADMITTED, PARKED --> REFUSED
                      |      ^
                      v      | a repeated read
                      ANSWERED

Calls in progress are kept; a finished one is known by its number, and a refused one by its
reason, so that memory is bounded by what is in progress.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple, TypeAlias

from bireme.ir.names import trainer_of
from bireme.net.messages import Refused

from . import errors
from .events import Arrived, Call, Shared
from .server_spec import Settings

__all__ = [
    "MAX_EARLY",
    "TRANSITIONS",
    "AllGather",
    "CountedCalls",
    "InvalidTransition",
    "PushNames",
    "Row",
    "State",
    "Step",
    "TooEarly",
]

MAX_EARLY = 1024  # calls of one trainer that may wait for an earlier one
_MAX_REFUSED = 64  # refusals of one trainer that are kept for repeats

Life: TypeAlias = tuple[int, int]  # trainer, incarnation


class Row(NamedTuple):
    """What the core does about one kind of message."""

    handle: Callable[..., None]  # (core, event, message); a counted call: in its turn
    keeps: bool = False  # the shell keeps its payload under its ticket
    reads: bool = False  # a repeat reads again


class State(IntEnum):
    """Where a call stands."""

    NEW = auto()  # not seen
    EARLY = auto()  # an earlier call of its trainer is missing
    ADMITTED = auto()  # in effect; its answer may need an update, or the other trainers
    PARKED = auto()  # reads what the open round will change
    ANSWERED = auto()  # final
    REFUSED = auto()  # final


class Step(IntEnum):
    """What happens to a call."""

    ARRIVE = auto()
    TURN = auto()  # every earlier call has been admitted
    PARK = auto()
    RESUME = auto()  # the round that it waited for is over
    ANSWER = auto()
    REFUSE = auto()  # by a rule, by the time limit, or because the job has failed
    REPEAT = auto()  # arrives again
    REREAD = auto()  # a read arrives again, and reads again


TRANSITIONS: dict[tuple[State, Step], State] = {
    (State.NEW, Step.ARRIVE): State.EARLY,
    (State.EARLY, Step.TURN): State.ADMITTED,
    (State.EARLY, Step.REFUSE): State.REFUSED,
    (State.EARLY, Step.REPEAT): State.EARLY,
    (State.ADMITTED, Step.PARK): State.PARKED,
    (State.ADMITTED, Step.ANSWER): State.ANSWERED,
    (State.ADMITTED, Step.REFUSE): State.REFUSED,
    (State.ADMITTED, Step.REPEAT): State.ADMITTED,
    (State.PARKED, Step.RESUME): State.ADMITTED,
    (State.PARKED, Step.REFUSE): State.REFUSED,
    (State.PARKED, Step.REPEAT): State.PARKED,
    (State.ANSWERED, Step.REPEAT): State.ANSWERED,
    (State.ANSWERED, Step.REREAD): State.ADMITTED,
    (State.REFUSED, Step.REPEAT): State.REFUSED,
}


class TooEarly(Exception):
    """A call is too far ahead of the call `missing`."""

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing


class InvalidTransition(RuntimeError):
    """A step that `TRANSITIONS` does not allow: a mistake of the core's."""


@dataclass(slots=True)
class _Progress:
    """A call that has arrived and has no answer yet, and the tickets that wait for one."""

    event: Arrived
    tickets: list[int]
    state: State
    parked_at: float = 0.0


@dataclass(slots=True)
class _Sequence:
    """The calls of one life: the next number to admit, those in progress, and why some were
    refused.
    """

    next: int = 1
    progress: dict[int, _Progress] = field(default_factory=dict)
    refusals: dict[int, Refused] = field(default_factory=dict)

    def state(self, number: int) -> State:
        progress = self.progress.get(number)
        if progress is not None:
            return progress.state
        if number in self.refusals:
            return State.REFUSED
        return State.ANSWERED if number < self.next else State.NEW


class CountedCalls:
    """Every counted call of every trainer. Each method that changes a call is one step, and costs
    the same whatever the number of trainers and of calls.

    Raises:
        InvalidTransition: the call's state does not allow the step.
    """

    def __init__(self, most_early: int = MAX_EARLY) -> None:
        self._most_early = most_early
        self._sequences: dict[Life, _Sequence] = {}
        self._parked: dict[Call, _Progress] = {}  # in the order of parking
        self._rounds: dict[int, list[Call]] = {}  # the round that they wait for

    def state(self, call: Call) -> State:
        """Where a call stands."""
        sequence = self._sequences.get(call[:2])
        return State.NEW if sequence is None else sequence.state(call.sequence)

    def _sequence(self, life: Life) -> _Sequence:
        found = self._sequences.get(life)
        if found is None:
            found = self._sequences[life] = _Sequence()
        return found

    def _progress(self, call: Call) -> _Progress:
        return self._sequences[call[:2]].progress[call.sequence]

    def _step(self, call: Call, step: Step) -> State:
        """The state that follows, by the table."""
        state = self.state(call)
        following = TRANSITIONS.get((state, step))
        if following is None:
            raise InvalidTransition(f"{step.name} of {call}, which is {state.name}")
        return following

    # -- arriving --------------------------------------------------------------------------
    def arrive(self, event: Arrived) -> list[Arrived] | None:
        """Take a new call; the calls of its trainer whose turn has come, this one or none or more.
        None if this is a repeat.

        Raises:
            TooEarly: the call is too far ahead of one that is missing.
        """
        number = event.call.sequence
        sequence = self._sequence(event.call[:2])
        if number - sequence.next > self._most_early:
            raise TooEarly(sequence.next)
        if sequence.state(number) is not State.NEW:
            return None
        self._begin(event, self._step(event.call, Step.ARRIVE))
        due = []
        while (progress := sequence.progress.get(sequence.next)) is not None:
            progress.state = TRANSITIONS[progress.state, Step.TURN]
            sequence.next += 1
            due.append(progress.event)
        return due

    def _begin(self, event: Arrived, state: State) -> None:
        sequence = self._sequence(event.call[:2])
        sequence.progress[event.call.sequence] = _Progress(event, [event.ticket], state)

    def skip(self, life: Life, following: int) -> None:
        """Calls before `following` are over: their trainer will not repeat them."""
        sequence = self._sequence(life)
        sequence.next = max(sequence.next, following)

    def repeat(self, event: Arrived) -> Refused | None:
        """Take a call that has come before. In progress, both wait for the answer; a refused call
        gives its reason again.
        """
        self._step(event.call, Step.REPEAT)
        sequence = self._sequences[event.call[:2]]
        progress = sequence.progress.get(event.call.sequence)
        if progress is not None:
            progress.tickets.append(event.ticket)
            return None
        return sequence.refusals.get(event.call.sequence)

    def reread(self, event: Arrived) -> None:
        """Take a read that was answered before, and is to read again."""
        self._begin(event, self._step(event.call, Step.REREAD))

    # -- waiting ---------------------------------------------------------------------------
    def park(self, call: Call, number: int, now: float) -> None:
        """A read waits for the end of round `number`, its trainer's."""
        state = self._step(call, Step.PARK)
        progress = self._parked[call] = self._progress(call)
        progress.state, progress.parked_at = state, now
        self._rounds.setdefault(number, []).append(call)

    def resume(self, number: int) -> Iterator[Arrived]:
        """Round `number` is over; the reads that have waited for it, in the order of parking."""
        for call in self._rounds.pop(number, ()):
            if call in self._parked:  # not refused in the meantime
                state = self._step(call, Step.RESUME)
                progress = self._parked.pop(call)
                progress.state = state
                yield progress.event

    @property
    def parked(self) -> Mapping[Call, object]:
        """The reads that wait, the first one first."""
        return self._parked

    def parked_since(self) -> float | None:
        """Since when the first of them has waited."""
        progress = next(iter(self._parked.values()), None)
        return None if progress is None else progress.parked_at

    # -- finishing -------------------------------------------------------------------------
    def answer(self, call: Call) -> list[int]:
        """The call is answered; the tickets to answer."""
        self._step(call, Step.ANSWER)
        return self._sequences[call[:2]].progress.pop(call.sequence).tickets

    def refuse(self, call: Call, reason: Refused) -> list[int]:
        """The call is refused; the tickets to answer."""
        self._step(call, Step.REFUSE)
        sequence = self._sequences[call[:2]]
        sequence.refusals[call.sequence] = reason
        if len(sequence.refusals) > _MAX_REFUSED:
            del sequence.refusals[next(iter(sequence.refusals))]
        self._parked.pop(call, None)
        return sequence.progress.pop(call.sequence).tickets

    def unfinished(self, life: Life | None = None) -> list[Arrived]:
        """Calls without an answer: of one life, or of all."""
        lives = self._sequences if life is None else (life,)
        found = (self._sequences[each] for each in lives if each in self._sequences)
        return [progress.event for seq in found for progress in seq.progress.values()]


# -- names of pushes ---------------------------------------------------------------------------
_CACHED = 1024  # payloads whose names are cached


class PushNames:
    """The names that one server accepts."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.known: dict[tuple[int, tuple[str, ...]], tuple[str, ...]] = {}  # names sent -> bound

    def of(self, push: Arrived) -> tuple[str, ...] | Refused:
        """The names that the program gives to a push; a refusal if it is not for this server, or
        not its sender's to make.
        """
        if push.fault:
            return errors.wrong_data(push.fault)
        return self._accept(push.call.trainer, push.names)

    def _accept(self, trainer: int, pushed: tuple[str, ...]) -> tuple[str, ...] | Refused:
        settings = self._settings
        names = tuple(settings.bound(name) for name in pushed)
        if unknown := settings.unknown(names):
            return errors.not_owned(settings.endpoint, unknown[0], settings.gradients)
        for name in names:
            owner = trainer_of(name)
            if owner is not None and owner != trainer:
                return errors.anothers(name, owner, trainer)
        if len(self.known) >= _CACHED:
            self.known.clear()
        self.known[trainer, pushed] = names
        return names


# -- gatherings --------------------------------------------------------------------------------
class AllGather:
    """One gathering at a time: a trainer's next one begins after it has the answer to the last."""

    def __init__(self, expected: Callable[[], tuple[int, ...]]) -> None:
        self._expected = expected
        self._come: dict[int, tuple[Arrived, float]] = {}  # the first one first
        self._awaited: set[int] = set()  # trainers that have not come, once one has
        self._answers: dict[Call, Shared] = {}  # of the last gathering

    def add(self, event: Arrived, now: float) -> None:
        """A trainer has come."""
        if not self._come:
            self._awaited = set(self._expected())
        trainer = event.call.trainer
        self._come[trainer] = (event, now)
        self._awaited.discard(trainer)

    def forget(self, trainer: int) -> None:
        """What a trainer has brought counts no more."""
        if self._come.pop(trainer, None) is not None:
            self._awaited.add(trainer)

    def leave(self, trainer: int) -> None:
        """A trainer takes part no more."""
        self._awaited.discard(trainer)

    def missing(self) -> list[int]:
        """Whom those wait for who have come."""
        return sorted(self._awaited) if self._come else []

    def complete(self) -> tuple[list[Arrived], Shared | None]:
        """The calls to answer, and the answer; none while a trainer is missing."""
        if not self._come or self._awaited:
            return [], None
        events = [event for _, (event, _) in sorted(self._come.items())]
        tickets = tuple(event.ticket for event in events)
        calls = tuple(event.call for event in events)
        answer = Shared(tickets, sum(event.size for event in events), calls)
        self._come.clear()
        self._answers = dict.fromkeys(calls, answer)
        return events, answer

    def resume(self, calls: tuple[Call, ...]) -> None:
        """The last gathering, of before, was of these calls."""
        self._answers = dict.fromkeys(calls, Shared((), 0, calls))

    def answered(self, call: Call) -> Shared | None:
        """What a call was answered that is repeated, if it took part in the last gathering."""
        return self._answers.get(call)

    def late(self, now: float, patience: float) -> Iterator[Arrived]:
        """Those who have waited too long; they are forgotten."""
        while self._come:
            event, since = next(iter(self._come.values()))
            if now - since <= patience:
                return
            self.forget(event.call.trainer)
            yield event
