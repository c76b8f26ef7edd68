"""A server that continues the work of one that was killed: whom it knows, what it answers."""

from typing import Any

import pytest

from bireme.net import messages as m
from bireme.net.messages import NOT_GREETED
from bireme.pserver.journal.records import Known, KnownTrainer
from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core

from .core_driver import LIMITS, CoreDriver, barrier, complete, heartbeat, hello, pull, push, share

NEXT = 5  # the first call of each trainer that may not have taken effect


def successor(left: tuple[int, ...] = (), gathered: Any = ((), {})) -> CoreDriver:
    """The driver of a server whose record ends with round 3."""
    driver = CoreDriver()
    trainers = {t: KnownTrainer(t, 1, True, t in left, NEXT) for t in (0, 1)}
    driver.core = Core(driver.core._settings, LIMITS, Known(3, (7, 8), trainers, gathered))
    driver.sequence = {0: NEXT - 1, 1: NEXT - 1}
    driver.say(e.Tick(100.0))
    return driver


def applied(driver: CoreDriver) -> list[e.Apply]:
    return [done for done in driver.done if isinstance(done, e.Apply)]


def test_what_took_effect_is_answered_and_not_applied_again() -> None:
    driver = successor()
    driver.hello(0, 1)
    for trainer in (0, 1):
        names = (f"w@GRAD.trainer_{trainer}",)
        driver.say(push(driver.next(), e.Call(trainer, 1, NEXT - 2), 0, names))
        assert driver.answers[driver.ticket] == m.Accepted()
        driver.say(barrier(driver.next(), e.Call(trainer, 1, NEXT - 1), 0))
        assert driver.answers[driver.ticket] == m.Accepted()
        driver.say(pull(driver.next(), e.Call(trainer, 1, NEXT), ("w",)))
        assert driver.answers[driver.ticket] == e.Send(("w",), 3)
    assert not applied(driver)


def test_the_next_round_is_numbered_on() -> None:
    driver = successor()
    driver.hello(0, 1)
    for trainer in (0, 1):
        driver.push(trainer, f"w@GRAD.trainer_{trainer}")
        driver.barrier(trainer)
    (update,) = applied(driver)
    assert update.number == 4
    assert update.barriers == (e.Call(0, 1, NEXT + 1), e.Call(1, 1, NEXT + 1))


def test_calls_that_a_trainer_will_not_repeat_are_over() -> None:
    driver = successor()
    driver.say(hello(driver.next(), 0, 1, first=NEXT + 3, seen=3))
    driver.say(pull(driver.next(), e.Call(0, 1, NEXT + 3), ("w",)))
    assert driver.answers[driver.ticket] == e.Send(("w",), 3)


def test_calls_of_a_trainer_that_has_not_greeted_are_to_be_repeated() -> None:
    driver = successor()
    asked = pull(driver.next(), e.Call(0, 1, NEXT + 3), ("w",))
    driver.say(asked)
    assert driver.answers[driver.ticket].kind == NOT_GREETED
    driver.say(hello(driver.next(), 0, 1, first=NEXT + 3, seen=3))
    driver.say(asked)
    assert driver.answers[asked.ticket] == e.Send(("w",), 3)


def test_heartbeats_count_before_the_trainer_has_greeted() -> None:
    driver = successor()
    driver.say(heartbeat(driver.next(), 1, 1, 3))
    assert driver.answers[driver.ticket] == m.Accepted()


def test_silence_is_counted_from_the_begin_of_this_life() -> None:
    driver = successor()
    driver.hello(0)
    driver.say(e.Tick(101.0))
    assert not [done for done in driver.done if isinstance(done, e.Fail)]
    for second in range(102, 120):
        driver.say(e.Tick(float(second)))
        driver.say(heartbeat(driver.next(), 0, 1, 3))
    assert "trainer 1 is lost" in driver.answers[driver.ticket].text


def test_another_life_of_a_trainer_begins_the_job_anew() -> None:
    driver = successor()
    driver.hello(0, incarnation=2)
    assert driver.done == [e.StartOver()]
    assert driver.ticket not in driver.answers  # it greets again


@pytest.mark.parametrize("sign", ["hello", "heartbeat"])
def test_while_one_trainer_is_there_another_life_of_any_is_a_stranger(sign: str) -> None:
    driver = successor()
    if sign == "hello":
        driver.hello(1)
    else:
        driver.say(heartbeat(driver.next(), 1, 1, 3))
    driver.hello(0, incarnation=2)
    assert not driver.done
    assert isinstance(driver.answers[driver.ticket], m.Refused)


def test_a_record_that_has_lost_what_was_answered_is_refused() -> None:
    driver = successor()
    driver.say(hello(driver.next(), 0, 1, seen=4))
    assert "ends with round 3, but trainer 0 has seen round 4" in driver.answers[driver.ticket].text


def test_shared_arrays_are_sent_again() -> None:
    calls = (e.Call(0, 1, NEXT - 1), e.Call(1, 1, NEXT - 1))
    driver = successor(gathered=(calls, {}))
    driver.hello(0, 1)
    driver.say(share(driver.next(), calls[1], 3))
    assert driver.answers[driver.ticket] == e.Shared((), 0, calls)


def test_where_all_have_finished_it_stays_for_repeats() -> None:
    driver = successor(left=(0, 1))
    driver.say(complete(driver.next(), 1, 1))
    assert driver.answers[driver.ticket] == m.Accepted()
    assert not driver.done
    for now in (1, 2):
        driver.say(e.Tick(100.0 + LIMITS.farewell * now / 2))
    assert driver.done == [e.Finish()]
