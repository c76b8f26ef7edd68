"""A trainer in another life, as a server that records its rounds sees it."""

from dataclasses import replace
from typing import Any

import pytest

from bireme.net import messages as m
from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core

from .core_driver import LIMITS, CoreDriver, abort, barrier, heartbeat, pull, push

REJOIN = 60.0


def driver(rejoin: float = REJOIN) -> CoreDriver:
    """Two trainers at a server that waits for a trainer's successor."""
    made = CoreDriver()
    made.core = Core(made.core._settings, replace(LIMITS, rejoin=rejoin))
    made.say(e.Tick(100.0))
    made.hello(0, 1)
    return made


def greet(made: CoreDriver, incarnation: int = 2, trainer: int = 0) -> int:
    made.hello(trainer, incarnation=incarnation)
    return made.ticket


def pushes(made: CoreDriver) -> tuple[int, ...]:
    """The payloads that the last update uses."""
    return made.applies()[-1].pushes


def act(made: CoreDriver, incarnation: int, *kinds: Any, inherits: bool = False) -> list[int]:
    """Calls of a new life of trainer 0; their tickets."""
    tickets = []
    for number, kind in enumerate(kinds, 1):
        tickets.append(made.next())
        call = e.Call(0, incarnation, number)
        given = {push: (0, ("w@GRAD.trainer_0",)), barrier: (0, inherits), pull: (("w",),)}
        made.say(kind(tickets[-1], call, *given[kind]))
    return tickets


def test_a_successor_hears_where_its_former_life_was() -> None:
    made = driver()
    made.round(0)
    made.round(1)
    made.apply_all()
    made.push(0, "w@GRAD.trainer_0")
    made.say(e.Reset(0, 1))
    assert made.answers[greet(made)] == m.Welcome(mode=0, incarnation=0, passed=1, pushed=1)


def test_what_was_pushed_serves_the_barrier_that_inherits_it() -> None:
    made = driver()
    pushed = made.push(0, "w@GRAD.trainer_0")
    made.say(e.Reset(0, 1))
    greet(made)
    made.round(1)
    _, pulled = act(made, 2, barrier, pull, inherits=True)
    assert pushes(made)[0] == pushed
    made.apply_all()
    assert made.answers[pulled] == e.Send(("w",), 1)


def test_what_was_pushed_is_dropped_when_the_step_is_computed_again() -> None:
    made = driver()
    pushed = made.push(0, "w@GRAD.trainer_0")
    made.say(e.Reset(0, 1))
    greet(made)
    made.round(1)
    again, _ = act(made, 2, push, barrier)
    assert pushes(made)[0] == again
    assert e.Discard(pushed) in made.done


def test_a_barrier_that_has_come_counts_for_the_successor() -> None:
    made = driver()
    made.push(0, "w@GRAD.trainer_0")
    made.barrier(0)
    made.say(e.Reset(0, 1))
    assert made.answers[greet(made)] == m.Welcome(mode=0, incarnation=0, passed=1)
    (pulled,) = act(made, 2, pull)
    assert pulled not in made.answers  # the round is open
    made.round(1)
    made.apply_all()
    assert made.answers[pulled] == e.Send(("w",), 1)


def test_calls_of_the_former_life_count_no_more() -> None:
    made = driver()
    waiting = made.round(0)
    made.say(e.Reset(0, 1))
    greet(made)
    assert "was started again" in made.answers[waiting].text
    late = made.push(0, "w@GRAD.trainer_0")
    assert isinstance(made.answers[late], m.Refused)
    assert e.Discard(late) in made.done


def test_the_former_life_cannot_end_the_job() -> None:
    made = driver()
    made.say(e.Reset(0, 1))
    greet(made)
    made.say(abort(made.next(), 0, 1, 3, "it was told to go"))
    assert "former life" in made.answers[made.ticket].text
    assert not [done for done in made.done if isinstance(done, e.Fail)]


def test_who_comes_before_the_end_of_the_former_life_waits_for_it() -> None:
    made = driver()
    ticket = greet(made)
    assert ticket not in made.answers
    made.say(e.Reset(0, 1))
    made.say(e.Tick(100.2))
    assert isinstance(made.answers[ticket], m.Welcome)


def test_a_second_process_with_the_number_of_one_that_lives_is_refused() -> None:
    made = driver()
    ticket = greet(made)
    for second in range(1, 12):
        made.say(heartbeat(made.next(), 0, 1, 3))
        made.say(heartbeat(made.next(), 1, 1, 3))
        made.say(e.Tick(100.0 + second))
    assert "already taken" in made.answers[ticket].text


def test_a_silent_trainer_is_replaced_by_a_successor_that_waits() -> None:
    made = driver()
    for second in range(1, 9):
        made.say(heartbeat(made.next(), 1, 1, 3))
        made.say(e.Tick(100.0 + second))
    ticket = greet(made)
    made.say(e.Tick(108.1))
    assert isinstance(made.answers[ticket], m.Welcome)


def test_a_heartbeat_that_was_under_way_is_no_sign_of_life() -> None:
    made = driver()
    made.say(e.Reset(0, 1))
    made.say(heartbeat(made.next(), 0, 1, 3))
    assert isinstance(made.answers[greet(made)], m.Welcome)


@pytest.mark.parametrize("rejoin", [REJOIN, 0.0])
def test_a_trainer_that_has_gone_is_waited_for_where_rounds_are_recorded(rejoin: float) -> None:
    made = driver(rejoin)
    made.say(e.Reset(0, 1))
    for second in range(1, 59):
        made.say(heartbeat(made.next(), 1, 1, 3))
        made.say(e.Tick(100.0 + second))
    assert bool([done for done in made.done if isinstance(done, e.Fail)]) == (not rejoin)
    if rejoin:
        (report,) = (done for done in made.done if isinstance(done, e.Report))
        assert report.text.startswith("server s0: trainer 0 has gone at step")
        for tick in range(600):
            made.say(e.Tick(159.0 + tick / 4))
            made.say(heartbeat(made.next(), 1, 1, 3))
        assert "it was not started again" in made.answers[made.ticket].text


def test_without_records_another_life_is_refused() -> None:
    made = driver(rejoin=0.0)
    made.say(e.Reset(0, 1))
    assert "already taken" in made.answers[greet(made)].text
