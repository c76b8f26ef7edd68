"""The states of a counted call: every pair of a state and a step is in the table, or refused."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from bireme.net import messages as m
from bireme.pserver.rules import events as e
from bireme.pserver.rules.calls import TRANSITIONS, CountedCalls, InvalidTransition, State, Step

from .core_driver import pull

BEFORE, CALL = e.Call(0, 1, 1), e.Call(0, 1, 2)
PULL = pull(1, CALL)
REASON = m.Refused(kind="ProtocolError", text="no")

METHODS: dict[Step, Callable[[CountedCalls], Any]] = {
    Step.ARRIVE: lambda calls: calls.arrive(PULL),
    Step.TURN: lambda calls: calls.arrive(pull(2, BEFORE)),
    Step.PARK: lambda calls: calls.park(CALL, 1, 0.0),
    Step.RESUME: lambda calls: list(calls.resume(1)),
    Step.ANSWER: lambda calls: calls.answer(CALL),
    Step.REFUSE: lambda calls: calls.refuse(CALL, REASON),
    Step.REPEAT: lambda calls: calls.repeat(PULL),
    Step.REREAD: lambda calls: calls.reread(PULL),
}
WAYS: dict[State, tuple[Step, ...]] = {
    State.NEW: (),
    State.EARLY: (Step.ARRIVE,),
    State.ADMITTED: (Step.ARRIVE, Step.TURN),
    State.PARKED: (Step.ARRIVE, Step.TURN, Step.PARK),
    State.ANSWERED: (Step.ARRIVE, Step.TURN, Step.ANSWER),
    State.REFUSED: (Step.ARRIVE, Step.TURN, Step.REFUSE),
}


def brought_to(state: State) -> CountedCalls:
    """Calls of which CALL stands at `state`."""
    calls = CountedCalls()
    for step in WAYS[state]:
        METHODS[step](calls)
    assert calls.state(CALL) is state
    return calls


@pytest.mark.parametrize(
    ("state", "step"), list(product(State, Step)), ids=lambda value: value.name.lower()
)
def test_a_step_leads_where_the_table_says_or_is_refused(state: State, step: Step) -> None:
    calls = brought_to(state)
    following = TRANSITIONS.get((state, step))
    if following is not None:
        METHODS[step](calls)
        assert calls.state(CALL) is following
        return
    if step is Step.ARRIVE:
        assert calls.arrive(PULL) is None
    elif step is Step.TURN:  # only the next call that has arrived can have its turn
        METHODS[step](calls)
    elif step is Step.RESUME:  # only calls that are parked resume
        assert not list(calls.resume(1))
    else:
        with pytest.raises(InvalidTransition, match=step.name):
            METHODS[step](calls)
    assert calls.state(CALL) is state


def test_every_state_can_be_left_or_is_final() -> None:
    left = {state for (state, _), following in TRANSITIONS.items() if following is not state}
    assert set(State) - left == {State.REFUSED}
    assert set(TRANSITIONS.values()) == set(State) - {State.NEW}
