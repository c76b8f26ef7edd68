"""Counted calls: each takes effect once, in its trainer's order, however often and in whatever
order its frames arrive.

A call is named by trainer, incarnation and number; numbers begin at 1. `TRANSITIONS` holds
everything that can happen to one:

    NEW --> EARLY --> ADMITTED <--> PARKED         any of EARLY, ADMITTED, PARKED --> REFUSED
                      |      ^
                      v      | a repeated read
                      ANSWERED

Calls in progress are kept; a finished one is known by its number, and a refused one by its
reason, so that memory is bounded by what is in progress.
"""

from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import TypeAlias

from . import events as e

__all__ = [
    "MAX_EARLY",
    "TRANSITIONS",
    "Counted",
    "CountedCalls",
    "Gated",
    "InvalidTransition",
    "State",
    "Step",
]

MAX_EARLY = 1024  # calls of one trainer that may wait for an earlier one
_MAX_REFUSED = 64  # refusals of one trainer that are kept for repeats

Gated: TypeAlias = e.Pull | e.Prefetch | e.Checkpoint
Counted: TypeAlias = e.Push | e.Barrier | e.Share | Gated
Life: TypeAlias = tuple[int, int]  # trainer, incarnation


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


class InvalidTransition(RuntimeError):
    """A step that `TRANSITIONS` does not allow: a mistake of the core's."""


@dataclass(slots=True)
class _Progress:
    """A call that has arrived and has no answer yet, and the tickets that wait for one."""

    event: Counted
    tickets: list[int]
    state: State
    parked_at: float = 0.0


@dataclass(slots=True)
class _Sequence:
    """The calls of one life: the next number to admit, and why some were refused."""

    next: int = 1
    refusals: dict[int, e.Failure] = field(default_factory=dict)


class CountedCalls:
    """Every counted call of every trainer. Each method that changes a call is one step.

    Raises:
        InvalidTransition: the call's state does not allow the step.
    """

    def __init__(self, most_early: int = MAX_EARLY) -> None:
        self._most_early = most_early
        self._sequences: dict[Life, _Sequence] = {}
        self._progress: dict[e.Call, _Progress] = {}
        self._parked: dict[e.Call, _Progress] = {}  # in the order of parking

    def state(self, call: e.Call) -> State:
        """Where a call stands."""
        progress = self._progress.get(call)
        if progress is not None:
            return progress.state
        sequence = self._sequences.get(call[:2])
        if sequence is not None and call.sequence in sequence.refusals:
            return State.REFUSED
        admitted = sequence is not None and call.sequence < sequence.next
        return State.ANSWERED if admitted else State.NEW

    def _sequence(self, life: Life) -> _Sequence:
        return self._sequences.setdefault(life, _Sequence())

    def _step(self, call: e.Call, step: Step) -> State:
        """The state that follows, by the table."""
        state = self.state(call)
        following = TRANSITIONS.get((state, step))
        if following is None:
            raise InvalidTransition(f"{step.name} of {call}, which is {state.name}")
        return following

    # -- arriving --------------------------------------------------------------------------
    def missing(self, call: e.Call) -> int:
        """The number that must come first, where the call is too far ahead of it; else 0."""
        sequence = self._sequences.get(call[:2])
        following = 1 if sequence is None else sequence.next
        return following if call.sequence - following > self._most_early else 0

    def arrive(self, event: Counted) -> None:
        """Keep a new call until its turn."""
        state = self._step(event.call, Step.ARRIVE)
        self._progress[event.call] = _Progress(event, [event.ticket], state)

    def skip(self, life: Life, following: int) -> None:
        """Calls before `following` are over: their trainer will not repeat them."""
        sequence = self._sequence(life)
        sequence.next = max(sequence.next, following)

    def turn(self, life: Life) -> Counted | None:
        """Admit the next call of a trainer, if it has arrived."""
        sequence = self._sequence(life)
        call = e.Call(*life, sequence.next)
        progress = self._progress.get(call)
        if progress is None:
            return None
        progress.state = self._step(call, Step.TURN)
        sequence.next += 1
        return progress.event

    def repeat(self, event: Counted) -> e.Failure | None:
        """Take a call that has come before. In progress, both wait for the answer; a refused call
        gives its reason again.
        """
        self._step(event.call, Step.REPEAT)
        progress = self._progress.get(event.call)
        if progress is not None:
            progress.tickets.append(event.ticket)
            return None
        return self._sequences[event.call[:2]].refusals.get(event.call.sequence)

    def reread(self, event: Gated) -> None:
        """Take a read that was answered before, and is to read again."""
        state = self._step(event.call, Step.REREAD)
        self._progress[event.call] = _Progress(event, [event.ticket], state)

    # -- waiting ---------------------------------------------------------------------------
    def park(self, call: e.Call, now: float) -> None:
        """A read waits for its trainer's round."""
        state = self._step(call, Step.PARK)
        progress = self._parked[call] = self._progress[call]
        progress.state, progress.parked_at = state, now

    def resume(self, call: e.Call) -> Gated:
        """The round is over; the read."""
        state = self._step(call, Step.RESUME)
        progress = self._parked.pop(call)
        progress.state = state
        assert isinstance(progress.event, Gated)
        return progress.event

    @property
    def parked(self) -> list[tuple[e.Call, float]]:
        """The reads that wait, and since when."""
        return [(call, progress.parked_at) for call, progress in list(self._parked.items())]

    # -- finishing -------------------------------------------------------------------------
    def answer(self, call: e.Call) -> list[int]:
        """The call is answered; the tickets to answer."""
        self._step(call, Step.ANSWER)
        return self._progress.pop(call).tickets

    def refuse(self, call: e.Call, reason: e.Failure) -> list[int]:
        """The call is refused; the tickets to answer."""
        self._step(call, Step.REFUSE)
        sequence = self._sequence(call[:2])
        sequence.refusals[call.sequence] = reason
        if len(sequence.refusals) > _MAX_REFUSED:
            del sequence.refusals[next(iter(sequence.refusals))]
        self._parked.pop(call, None)
        return self._progress.pop(call).tickets

    @property
    def unfinished(self) -> list[Counted]:
        """Calls without an answer."""
        return [progress.event for progress in self._progress.values()]
