"""The server's state machine: events in, instructions out. No socket, no thread, no sleep."""

import pytest

from bireme.errors import ProgramError
from bireme.net import messages as m
from bireme.pserver.rules import events as e

from .core_driver import CoreDriver, complete, heartbeat, push, sync


# -- sync --------------------------------------------------------------------------------------
def test_a_round_runs_when_every_trainer_has_passed_its_barrier() -> None:
    driver = sync()
    first = driver.round(0)
    assert not driver.applies()
    assert first not in driver.answers
    second = driver.round(1)
    (apply,) = driver.applies()
    assert apply.blocks == (1,)
    assert second not in driver.answers
    driver.apply_all()
    assert driver.answers[first] == driver.answers[second] == e.Send(("w",), 1)


def test_gradients_merge_in_trainer_order_whoever_comes_first() -> None:
    driver = sync(3)
    for trainer in (2, 0, 1):
        driver.round(trainer)
    (apply,) = driver.applies()
    pushed = [7, 10, 4]  # the pushes' tickets of trainers 0, 1 and 2: three hellos came first
    assert list(apply.pushes) == pushed


def test_a_trainer_pulls_at_once_before_its_first_push() -> None:
    driver = sync()
    assert driver.answers[driver.pull(0)] == e.Send(("w",), 0)


def test_a_waiting_pull_holds_up_nobody() -> None:
    driver = sync()
    driver.round(0)
    assert driver.answers[driver.pull(1)] == e.Send(("w",), 0)
    beat = driver.next()
    driver.say(heartbeat(beat, 0, 1, 1))
    assert driver.answers[beat] == m.Accepted()


def test_a_fast_trainer_cannot_enter_the_next_round_early() -> None:
    driver = sync()
    driver.round(0)
    driver.push(0, "w@GRAD.trainer_0")
    driver.barrier(0)
    driver.round(1)
    assert len(driver.applies()) == 1
    driver.apply_all()
    assert not driver.applies()


def test_the_round_in_hand_is_the_only_one_that_runs() -> None:
    driver = sync()
    for _ in range(2):
        for trainer in (0, 1):
            driver.push(trainer, f"w@GRAD.trainer_{trainer}")
            driver.barrier(trainer)
    assert [apply.number for apply in driver.applies()] == [1]
    driver.apply_all()
    assert [apply.number for apply in driver.applies()] == [2]


def test_an_absent_gradient_counts_as_zero_and_a_block_without_any_does_not_run() -> None:
    driver = sync(params="wv")
    driver.round(0, "w")
    driver.round(1, "")
    (apply,) = driver.applies()
    assert apply.blocks == (1,)
    assert apply.absent == ("w@GRAD.trainer_1",)


def test_a_block_that_waits_for_no_gradient_runs_in_every_round() -> None:
    driver = sync(blocks=(9, 1), lr_block=9)
    driver.round(0)
    driver.round(1)
    assert driver.applies()[0].blocks == (9, 1)


def test_a_finished_trainer_is_not_waited_for_and_contributes_nothing() -> None:
    driver = sync()
    driver.round(0)
    driver.say(complete(driver.next(), 1, 1))
    (apply,) = driver.applies()
    assert apply.absent == ("w@GRAD.trainer_1",)


def test_a_trainer_that_completes_half_way_takes_its_pushes_along() -> None:
    driver = sync()
    half = driver.push(1, "w@GRAD.trainer_1")
    driver.say(complete(driver.next(), 1, 1))
    driver.round(0)
    assert e.Discard(half) in driver.done
    assert driver.applies()[0].absent == ("w@GRAD.trainer_1",)


def test_the_server_finishes_when_all_trainers_have() -> None:
    driver = sync()
    driver.say(complete(driver.next(), 0, 1))
    assert e.Finish() not in driver.done
    driver.say(complete(driver.next(), 1, 1))
    assert e.Finish() in driver.done


def test_with_one_trainer_a_gradient_without_suffix_is_trainer_0s() -> None:
    settings = {"aliases": {"w@GRAD": "w@GRAD.trainer_0"}}
    driver = sync(1, **settings)
    driver.push(0, "w@GRAD")
    driver.barrier(0)
    (apply,) = driver.applies()
    assert apply.blocks == (1,)
    assert apply.absent == ()


def test_a_server_that_owns_nothing_keeps_the_rounds() -> None:
    driver = sync(params="", blocks=(1,))
    pulls = [driver.round(0, ""), driver.round(1, "")]
    driver.apply_all()
    assert [driver.answers[pull].version for pull in pulls] == [1, 1]


# -- the other modes ---------------------------------------------------------------------------
def test_async_applies_each_push_when_it_comes_and_answers_it_afterwards() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    first, second = driver.push(0, "w@GRAD"), driver.push(1, "w@GRAD")
    assert [apply.pushes for apply in driver.applies()] == [(first,), (second,)]
    assert not {first, second} & driver.answers.keys()
    driver.apply_all()
    assert driver.answers[first] == driver.answers[second] == m.Accepted()


def test_async_pulls_never_wait() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    driver.push(0, "w@GRAD")
    assert driver.answers[driver.pull(0)] == e.Send(("w",), 0)


def test_async_repeats_are_recognised_while_the_first_is_being_applied_and_after() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    driver.push(0, "w@GRAD")
    during = driver.next()
    driver.say(push(during, driver.call(0, repeat=True), 0, ("w@GRAD",)))
    assert during not in driver.answers
    assert len(driver.applies()) == 1
    driver.apply_all()
    after = driver.next()
    driver.say(push(after, driver.call(0, repeat=True), 0, ("w@GRAD",)))
    assert driver.answers[during] == driver.answers[after] == m.Accepted()
    assert not driver.applies()


def test_async_runs_the_schedule_once_before_serving_and_at_every_step_count() -> None:
    driver = CoreDriver(mode=2, lr_block=9)
    assert driver.applies()[0].blocks == (9,)
    driver.apply_all()
    driver.hello(0)
    driver.push(0, "@LR_DECAY_COUNTER@.trainer_0")
    assert driver.applies()[0].blocks == (9,)


def test_dc_asgd_keeps_what_a_trainer_pulled() -> None:
    driver = CoreDriver(mode=2, dc_asgd=True)
    driver.hello(0, 1)
    driver.pull(1)
    assert e.Snapshot(1, ("w",)) in driver.done
    driver.push(1, "w@GRAD")
    assert driver.applies()[0].trainer == 1


def test_dc_asgd_in_sync_mode_is_refused() -> None:
    with pytest.raises(ProgramError, match="delay compensation"):
        CoreDriver(mode=0, dc_asgd=True)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ProgramError, match="unknown distributed_mode 7"):
        CoreDriver(mode=7)


def test_sync_trainer_at_an_async_server_is_told_so() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    assert "runs in half-async mode" in driver.answers[driver.barrier(0)].text


def test_async_trainer_at_a_sync_server_is_told_so() -> None:
    driver = sync()
    driver.push(0, "w@GRAD.trainer_0")
    assert "without a barrier" in driver.answers[driver.pull(0)].text


# -- who may take part -------------------------------------------------------------------------
def test_a_trainer_id_out_of_range_is_refused() -> None:
    driver = CoreDriver()
    driver.hello(2)
    assert "out of range" in driver.answers[1].text
    assert driver.answers[1].kind == "ConfigError"


def test_a_second_process_with_the_same_trainer_id_is_refused() -> None:
    driver = sync()
    driver.hello(1, incarnation=2)
    assert "already taken" in driver.answers[3].text


def test_a_stranger_is_not_heard() -> None:
    driver = CoreDriver()
    assert "not introduced" in driver.answers[driver.barrier(0)].text


def test_a_gradient_that_the_server_does_not_own_is_refused_by_name() -> None:
    driver = sync()
    assert "owns no gradient 'v@GRAD'" in driver.answers[driver.push(0, "v@GRAD")].text
