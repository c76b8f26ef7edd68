"""The core of a server says who is missing, and ends the job with the cause."""

from collections.abc import Callable
from typing import Any

import pytest

from bireme.net import messages as m
from bireme.net.membership import JobSize
from bireme.pserver.rules import events as e

from .core_driver import LIMITS, CoreDriver, abort, complete, heartbeat, hello, pull, sync


def failed(driver: CoreDriver) -> list[m.Refused]:
    """What the server says in its log."""
    return [done.failure for done in driver.done if isinstance(done, e.Fail)]


def failure(driver: CoreDriver) -> m.Refused:
    """What the server has ended with."""
    assert e.Finish() in driver.done
    (failure,) = failed(driver)
    return failure


def test_a_silent_trainer_is_named_with_its_step_and_everybody_is_told() -> None:
    driver = sync()
    for trainer in (0, 1):
        driver.say(heartbeat(driver.next(), trainer, 1, 37))
    waiting = driver.round(0)
    for now in range(1, 8):
        driver.say(e.Tick(float(now)))
        driver.say(heartbeat(driver.next(), 0, 1, 37))
    assert waiting not in driver.answers
    driver.say(e.Tick(8.5))
    told = driver.answers[waiting]
    assert told.kind == "PeerLost"
    assert told.peer == "trainer 1"
    assert told.step == 37
    assert "last heard 8.5 s ago, at step 37; trainer 0 waited for it" in told.text
    assert failure(driver) == told


def test_a_computing_trainer_learns_of_the_end_with_its_next_heartbeat() -> None:
    driver = sync(3)
    for now in range(1, 9):
        driver.say(e.Tick(float(now)))
        for trainer in (0, 1):
            driver.say(heartbeat(driver.next(), trainer, 1, 3))
    driver.say(e.Tick(9.0))
    assert [failure.peer for failure in failed(driver)] == ["trainer 2"]
    assert e.Finish() not in driver.done
    for trainer in (0, 1):
        ticket = driver.next()
        driver.say(heartbeat(ticket, trainer, 1, 3))
        assert driver.answers[ticket].peer == "trainer 2"
    assert failure(driver).peer == "trainer 2"


def test_the_server_leaves_even_if_nobody_comes_to_hear_it() -> None:
    driver = sync(3)
    for now in (1.5, 3.0, 4.5, 6.0, 7.5):
        driver.say(e.Tick(now))
        for trainer in (0, 1):
            driver.say(heartbeat(driver.next(), trainer, 1, 3))
    for now in (8.5, 9.0, 10.6):
        driver.say(e.Tick(now))
    assert failure(driver).peer == "trainer 2"


def test_a_trainer_whose_connection_has_ended_has_as_long_as_a_silent_one() -> None:
    driver = sync()
    driver.say(heartbeat(driver.next(), 1, 1, 5))
    waiting = driver.round(0)
    driver.say(e.Tick(0.5))
    driver.say(e.Reset(1, 1))
    for now in range(1, 9):
        driver.say(e.Tick(float(now)))
        driver.say(heartbeat(driver.next(), 0, 1, 5))
    assert waiting not in driver.answers
    driver.say(e.Tick(8.25))
    told = driver.answers[waiting]
    assert (told.kind, told.peer, told.step) == ("PeerLost", "trainer 1", 5)
    assert "trainer 1 is lost: its connection ended 7.8 s ago, at step 5" in told.text
    assert "FLAGS_heartbeat_seconds" in told.hint
    assert failure(driver) == told


def test_a_trainer_whose_process_has_ended_is_lost_at_once() -> None:
    driver = sync()
    driver.say(heartbeat(driver.next(), 1, 1, 5))
    waiting = driver.round(0)
    driver.say(e.Reset(1, 1, ended=True))
    driver.say(e.Tick(0.0))
    told = driver.answers[waiting]
    assert (told.kind, told.peer, told.step) == ("PeerLost", "trainer 1", 5)
    assert "trainer 1 is lost: its process has ended, at step 5" in told.text


def test_of_several_ended_processes_the_one_heard_least_lately_is_blamed() -> None:
    driver = sync(3)
    driver.say(e.Tick(1.0))
    for trainer in (0, 2):
        driver.say(heartbeat(driver.next(), trainer, 1, 5))
    for trainer in (0, 1, 2):
        driver.say(e.Reset(trainer, 1, ended=True))
    driver.say(e.Tick(1.1))
    beat = driver.next()
    driver.say(heartbeat(beat, 2, 1, 5))
    assert "trainer 1 is lost" in driver.answers[beat].text


def test_a_finished_trainers_process_may_end() -> None:
    driver = sync()
    driver.say(complete(driver.next(), 1, 1))
    driver.say(e.Reset(1, 1, ended=True))
    driver.say(e.Tick(0.5))
    assert not driver.done


def test_a_trainer_that_is_about_to_join_hears_why_it_cannot() -> None:
    driver = CoreDriver(3)
    for trainer in (0, 1):
        driver.hello(trainer)
    for now in (1.0, 2.0):
        driver.say(e.Tick(now))
    driver.say(e.Reset(1, 1, ended=True))
    driver.say(e.Tick(2.1))
    beat = driver.next()
    driver.say(heartbeat(beat, 0, 1, 0))
    assert "trainer 1 is lost" in driver.answers[beat].text
    driver.say(e.Tick(3.0))
    assert e.Finish() not in driver.done
    driver.say(hello(driver.next(), 2, 1))
    assert "trainer 1 is lost" in driver.answers[driver.ticket].text
    assert failure(driver).peer == "trainer 1"


def test_a_failed_server_waits_for_newcomers_as_long_as_for_silent_trainers() -> None:
    driver = CoreDriver(2)
    driver.hello(0)
    driver.say(e.Reset(0, 1, ended=True))
    for now in range(9):
        assert e.Finish() not in driver.done
        driver.say(e.Tick(float(now)))
    assert failure(driver).peer == "trainer 0"


def test_a_server_that_must_go_waits_for_no_newcomers() -> None:
    driver = CoreDriver(2)
    driver.hello(0)
    driver.say(abort(0, -1, 0, -1, "it was ended by SIGTERM"))
    for now in (0.0, LIMITS.farewell / 2, LIMITS.farewell):
        driver.say(e.Tick(now))
    assert "SIGTERM" in failure(driver).text


def test_a_trainer_that_asked_for_no_answer_has_not_heard_of_the_failure() -> None:
    """What answers a push may never be sent: the server stays until the trainer speaks again."""
    driver = CoreDriver(mode=1)
    driver.hello(0, 1)
    driver.say(e.Reset(1, 1, ended=True))
    driver.push(0, "w@GRAD")
    driver.say(e.Tick(0.25))
    assert e.Finish() not in driver.done
    beat = driver.next()
    driver.say(heartbeat(beat, 0, 1, 5))
    assert "trainer 1 is lost" in driver.answers[beat].text
    assert failure(driver) == driver.answers[beat]


SIGNS: dict[str, Callable[[CoreDriver], Any]] = {
    "heartbeat": lambda driver: heartbeat(driver.next(), 1, 1, 5),
    "hello": lambda driver: hello(driver.next(), 1, 1),
    "call": lambda driver: pull(driver.next(), driver.call(1), ("w",)),
    "complete": lambda driver: complete(driver.next(), 1, 1),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_trainer_that_comes_back_in_time_is_not_lost(sign: str) -> None:
    driver = sync()
    driver.say(e.Reset(1, 1))
    for now in range(13):
        driver.say(e.Tick(float(now)))
        driver.say(heartbeat(driver.next(), 0, 1, 5))
        if now == 7:
            driver.say(SIGNS[sign](driver))
    assert not driver.done


def test_the_end_of_another_lifes_connection_means_nothing() -> None:
    driver = sync()
    driver.say(e.Reset(1, 7))
    for now in (0.25, 0.5, 0.75, 1.0):
        driver.say(e.Tick(now))
    assert not driver.done


def test_a_server_that_stood_still_hears_what_has_arrived_before_it_blames() -> None:
    driver = sync()
    driver.say(e.Reset(1, 1))
    driver.say(e.Tick(30.0))
    assert not driver.done


def test_a_failure_that_a_trainer_reports_keeps_its_name() -> None:
    driver = sync()
    waiting = driver.round(0)
    cause = "server s1 is lost: silent for 6.1 s, at step 3"
    driver.say(abort(driver.next(), 1, 1, 3, cause, kind="PeerLost", peer="server s1"))
    told = driver.answers[waiting]
    assert told == m.Refused(
        kind="PeerLost", text=f"{cause} (reported by trainer 1)", peer="server s1", step=3
    )
    assert failed(driver) == [told]


def test_a_trainer_that_never_comes_is_named() -> None:
    driver = CoreDriver(3)
    driver.hello(0)
    for now in range(1, 62):
        driver.say(e.Tick(float(now)))
        driver.say(heartbeat(driver.next(), 0, 1, 0))
    assert failure(driver).text.startswith("trainers 1, 2 never connected within")


def test_a_server_that_was_stopped_itself_blames_nobody() -> None:
    driver = sync()
    driver.say(e.Tick(1.0))
    driver.say(e.Tick(1000.0))
    assert not driver.done
    for now in range(1001, 1012):
        driver.say(e.Tick(float(now)))
    assert failure(driver).kind == "PeerLost"


def test_a_trainer_without_heartbeats_may_be_quiet_for_longer() -> None:
    driver = CoreDriver(1)
    driver.say(hello(1, 0, 1, beats=False))
    for now in range(0, 100):
        driver.say(e.Tick(float(now)))
    assert not driver.done
    driver.say(e.Tick(100.5))
    assert failure(driver).peer == "trainer 0"


def test_an_abort_reaches_those_who_wait_with_its_cause() -> None:
    driver = sync()
    waiting = driver.round(0)
    driver.say(abort(driver.next(), 1, 1, 12, "ValueError: bad batch"))
    told = driver.answers[waiting]
    text = "trainer 1 gave up: ValueError: bad batch"
    assert told == m.Refused(kind="Aborted", text=text, peer="trainer 1", step=12)
    assert failure(driver) == told


def test_a_broken_update_ends_the_job_and_says_where() -> None:
    driver = sync()
    waiting = driver.round(0)
    driver.round(1)
    driver.say(e.Broken(1, "shapes differ"))
    assert "server s0 could not compute update 1: shapes differ" in driver.answers[waiting].text


def test_a_wait_that_is_too_long_says_for_whom() -> None:
    driver = sync()
    waiting = driver.round(0)
    for now in range(1, 52):
        driver.say(e.Tick(float(now)))
        for trainer in (0, 1):
            driver.say(heartbeat(driver.next(), trainer, 1, 5))
    assert driver.answers[waiting].kind == "DeadlineExceeded"
    assert "trainer 1 did not reach the barrier of round 1" in driver.answers[waiting].text


def test_a_trainer_for_another_number_of_trainers_ends_a_server_that_waits_for_trainers() -> None:
    driver = CoreDriver(2)
    driver.hello(1)
    driver.say(hello(driver.next(), 0, 1, size=JobSize(trainers=3)))
    refused = driver.answers[driver.ticket]
    beat = driver.next()
    driver.say(heartbeat(beat, 1, 1, 0))
    assert "trainer 0 was started for 3 trainers, server s0 for 2" in refused.text
    assert failure(driver) == refused == driver.answers[beat]


def test_a_trainer_for_another_number_of_trainers_does_not_disturb_a_complete_job() -> None:
    driver = sync()
    driver.say(hello(driver.next(), 0, 2, size=JobSize(trainers=3)))
    assert "was started for 3" in driver.answers[driver.ticket].text
    assert not failed(driver)
    assert e.Report(driver.answers[driver.ticket].text) in driver.done
