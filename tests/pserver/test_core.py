"""The server's state machine: events in, instructions out. No socket, no thread, no sleep."""

import pytest

from bireme.errors import ProgramError
from bireme.pserver import events as e

from .bench import Bench, sync


# -- sync --------------------------------------------------------------------------------------
def test_a_round_runs_when_every_trainer_has_passed_its_barrier() -> None:
    bench = sync()
    first = bench.round(0)
    assert not bench.applies()
    assert first not in bench.answers
    second = bench.round(1)
    (apply,) = bench.applies()
    assert apply.blocks == (1,)
    assert second not in bench.answers
    bench.apply_all()
    assert bench.answers[first] == bench.answers[second] == e.Send(("w",), 1)


def test_gradients_merge_in_trainer_order_whoever_comes_first() -> None:
    bench = sync(3)
    for trainer in (2, 0, 1):
        bench.round(trainer)
    (apply,) = bench.applies()
    pushed = [7, 10, 4]  # the pushes' tickets of trainers 0, 1 and 2: three hellos came first
    assert list(apply.pushes) == pushed


def test_a_trainer_pulls_at_once_before_its_first_push() -> None:
    bench = sync()
    assert bench.answers[bench.pull(0)] == e.Send(("w",), 0)


def test_a_waiting_pull_holds_up_nobody() -> None:
    bench = sync()
    bench.round(0)
    assert bench.answers[bench.pull(1)] == e.Send(("w",), 0)
    beat = bench.next()
    bench.say(e.Heartbeat(beat, 0, 1, 1))
    assert bench.answers[beat] == e.Accepted()


def test_a_fast_trainer_cannot_enter_the_next_round_early() -> None:
    bench = sync()
    bench.round(0)
    bench.push(0, "w@GRAD.trainer_0")
    bench.barrier(0)
    bench.round(1)
    assert len(bench.applies()) == 1
    bench.apply_all()
    assert not bench.applies()


def test_the_round_in_hand_is_the_only_one_that_runs() -> None:
    bench = sync()
    for _ in range(2):
        for trainer in (0, 1):
            bench.push(trainer, f"w@GRAD.trainer_{trainer}")
            bench.barrier(trainer)
    assert [apply.number for apply in bench.applies()] == [1]
    bench.apply_all()
    assert [apply.number for apply in bench.applies()] == [2]


def test_an_absent_gradient_counts_as_zero_and_a_block_without_any_does_not_run() -> None:
    bench = sync(params="wv")
    bench.round(0, "w")
    bench.round(1, "")
    (apply,) = bench.applies()
    assert apply.blocks == (1,)
    assert apply.absent == ("w@GRAD.trainer_1",)


def test_a_block_that_waits_for_no_gradient_runs_in_every_round() -> None:
    bench = sync(blocks=(9, 1), lr_block=9)
    bench.round(0)
    bench.round(1)
    assert bench.applies()[0].blocks == (9, 1)


def test_a_finished_trainer_is_not_waited_for_and_contributes_nothing() -> None:
    bench = sync()
    bench.round(0)
    bench.say(e.Complete(bench.next(), 1, 1))
    (apply,) = bench.applies()
    assert apply.absent == ("w@GRAD.trainer_1",)


def test_a_trainer_that_completes_half_way_takes_its_pushes_along() -> None:
    bench = sync()
    half = bench.push(1, "w@GRAD.trainer_1")
    bench.say(e.Complete(bench.next(), 1, 1))
    bench.round(0)
    assert e.Discard(half) in bench.done
    assert bench.applies()[0].absent == ("w@GRAD.trainer_1",)


def test_the_server_finishes_when_all_trainers_have() -> None:
    bench = sync()
    bench.say(e.Complete(bench.next(), 0, 1))
    assert e.Finish() not in bench.done
    bench.say(e.Complete(bench.next(), 1, 1))
    assert e.Finish() in bench.done


def test_with_one_trainer_a_gradient_without_suffix_is_trainer_0s() -> None:
    settings = {"aliases": {"w@GRAD": "w@GRAD.trainer_0"}}
    bench = sync(1, **settings)
    bench.push(0, "w@GRAD")
    bench.barrier(0)
    (apply,) = bench.applies()
    assert apply.blocks == (1,)
    assert apply.absent == ()


def test_a_server_that_owns_nothing_keeps_the_rounds() -> None:
    bench = sync(params="", blocks=(1,))
    pulls = [bench.round(0, ""), bench.round(1, "")]
    bench.apply_all()
    assert [bench.answers[pull].version for pull in pulls] == [1, 1]


# -- the other modes ---------------------------------------------------------------------------
def test_async_applies_each_push_when_it_comes_and_answers_it_afterwards() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    first, second = bench.push(0, "w@GRAD"), bench.push(1, "w@GRAD")
    assert [apply.pushes for apply in bench.applies()] == [(first,), (second,)]
    assert not {first, second} & bench.answers.keys()
    bench.apply_all()
    assert bench.answers[first] == bench.answers[second] == e.Accepted()


def test_async_pulls_never_wait() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    bench.push(0, "w@GRAD")
    assert bench.answers[bench.pull(0)] == e.Send(("w",), 0)


def test_async_repeats_are_recognised_while_the_first_is_being_applied_and_after() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    bench.push(0, "w@GRAD")
    during = bench.next()
    bench.say(e.Push(during, bench.call(0, repeat=True), 0, ("w@GRAD",)))
    assert during not in bench.answers
    assert len(bench.applies()) == 1
    bench.apply_all()
    after = bench.next()
    bench.say(e.Push(after, bench.call(0, repeat=True), 0, ("w@GRAD",)))
    assert bench.answers[during] == bench.answers[after] == e.Accepted()
    assert not bench.applies()


def test_async_runs_the_schedule_once_before_serving_and_at_every_step_count() -> None:
    bench = Bench(mode=2, lr_block=9)
    assert bench.applies()[0].blocks == (9,)
    bench.apply_all()
    bench.hello(0)
    bench.push(0, "@LR_DECAY_COUNTER@.trainer_0")
    assert bench.applies()[0].blocks == (9,)


def test_dc_asgd_keeps_what_a_trainer_pulled() -> None:
    bench = Bench(mode=2, dc_asgd=True)
    bench.hello(0, 1)
    bench.pull(1)
    assert e.Snapshot(1, ("w",)) in bench.done
    bench.push(1, "w@GRAD")
    assert bench.applies()[0].trainer == 1


def test_dc_asgd_in_sync_mode_is_refused() -> None:
    with pytest.raises(ProgramError, match="delay compensation"):
        Bench(mode=0, dc_asgd=True)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ProgramError, match="unknown distributed_mode 7"):
        Bench(mode=7)


def test_sync_trainer_at_an_async_server_is_told_so() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    assert "runs in half-async mode" in bench.answers[bench.barrier(0)].text


def test_async_trainer_at_a_sync_server_is_told_so() -> None:
    bench = sync()
    bench.push(0, "w@GRAD.trainer_0")
    assert "without a barrier" in bench.answers[bench.pull(0)].text


# -- who may take part -------------------------------------------------------------------------
def test_a_trainer_id_out_of_range_is_refused() -> None:
    bench = Bench()
    bench.hello(2)
    assert "out of range" in bench.answers[1].text
    assert bench.answers[1].kind == "ConfigError"


def test_a_second_process_with_the_same_trainer_id_is_refused() -> None:
    bench = sync()
    bench.hello(1, incarnation=2)
    assert "already taken" in bench.answers[3].text


def test_a_stranger_is_not_heard() -> None:
    bench = Bench()
    assert "not introduced" in bench.answers[bench.barrier(0)].text


def test_a_gradient_that_the_server_does_not_own_is_refused_by_name() -> None:
    bench = sync()
    assert "owns no gradient 'v@GRAD'" in bench.answers[bench.push(0, "v@GRAD")].text
