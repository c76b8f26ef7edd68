"""The server's state machine: events in, instructions out. No socket, no thread, no sleep."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import ProgramError
from bireme.pserver import events as e
from bireme.pserver.core import Core
from bireme.pserver.counted_calls import MAX_EARLY
from bireme.pserver.membership import Limits
from bireme.pserver.server_spec import Settings

LIMITS = Limits(silence=8, quiet=100, join=60, patience=50, farewell=2)


class Bench:
    """A core with hands: events by word, tickets counted, answers collected."""

    def __init__(self, trainers: int = 2, mode: int = 0, params: str = "w", **more: Any) -> None:
        gradients = {}
        for block, param in enumerate(params, 1):
            names = [f"{param}@GRAD.trainer_{i}" for i in range(trainers)]
            gradients.update(dict.fromkeys(names if mode == 0 else [f"{param}@GRAD"], block))
        blocks = tuple(range(1, len(params) + 1))
        given = {"endpoint": "s0", "trainers": trainers, "mode": mode, "blocks": blocks}
        self.core = Core(Settings(**{**given, "gradients": gradients, **more}), LIMITS)
        self.answers: dict[int, Any] = {}
        self.done: list[Any] = []
        self.ticket = 0
        self.sequence: dict[int, int] = {}
        self.say(e.Tick(0.0))

    def say(self, event: Any) -> list[Any]:
        out = list(self.core.handle(event))
        self.answers.update({o.ticket: o.answer for o in out if isinstance(o, e.Reply)})
        self.done += [o for o in out if not isinstance(o, e.Reply)]
        return out

    def next(self) -> int:
        self.ticket += 1
        return self.ticket

    def hello(self, *trainers: int, incarnation: int = 1) -> None:
        for trainer in trainers:
            self.say(e.Hello(self.next(), trainer, incarnation))

    def call(self, trainer: int, repeat: bool = False) -> e.Call:
        if not repeat:
            self.sequence[trainer] = self.sequence.get(trainer, 0) + 1
        return e.Call(trainer, 1, self.sequence[trainer])

    def push(self, trainer: int, *names: str, step: int = 0) -> int:
        ticket = self.next()
        self.say(e.Push(ticket, self.call(trainer), step, names))
        return ticket

    def barrier(self, trainer: int, step: int = 0) -> int:
        ticket = self.next()
        self.say(e.Barrier(ticket, self.call(trainer), step))
        return ticket

    def pull(self, trainer: int, names: Iterable[str] = ("w",)) -> int:
        ticket = self.next()
        self.say(e.Pull(ticket, self.call(trainer), tuple(names)))
        return ticket

    def round(self, trainer: int, names: str = "w") -> int:
        """A whole step of one trainer; the ticket of its pull."""
        self.push(trainer, *(f"{name}@GRAD.trainer_{trainer}" for name in names))
        self.barrier(trainer)
        return self.pull(trainer)

    def applies(self) -> list[e.Apply]:
        return [done for done in self.done if isinstance(done, e.Apply)]

    def apply_all(self) -> None:
        running = self.applies()
        self.done = [done for done in self.done if done not in running]
        for apply in running:
            self.say(e.Applied(apply.number))


def sync(trainers: int = 2, **more: Any) -> Bench:
    bench = Bench(trainers, **more)
    bench.hello(*range(trainers))
    return bench


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


# -- exactly once ------------------------------------------------------------------------------
def test_a_repeated_push_is_answered_and_not_applied() -> None:
    bench = sync()
    bench.push(0, "w@GRAD.trainer_0")
    again = bench.next()
    bench.say(e.Push(again, bench.call(0, repeat=True), 0, ("w@GRAD.trainer_0",)))
    assert bench.answers[again] == e.Accepted()
    assert e.Discard(again) in bench.done


def test_a_repeated_barrier_counts_once() -> None:
    bench = sync()
    bench.push(0, "w@GRAD.trainer_0")
    bench.barrier(0)
    bench.say(e.Barrier(bench.next(), bench.call(0, repeat=True), 0))
    assert not bench.applies()


def test_the_repeat_of_a_waiting_pull_waits_beside_it() -> None:
    bench = sync()
    first = bench.round(0)
    again = bench.next()
    bench.say(e.Pull(again, bench.call(0, repeat=True), ("w",)))
    bench.round(1)
    bench.apply_all()
    assert bench.answers[first] == bench.answers[again] == e.Send(("w",), 1)


def test_the_repeat_of_an_answered_pull_is_answered_again() -> None:
    bench = sync()
    bench.pull(0)
    again = bench.next()
    bench.say(e.Pull(again, bench.call(0, repeat=True), ("w",)))
    assert bench.answers[again] == e.Send(("w",), 0)


def test_a_call_that_comes_before_its_turn_waits_for_it() -> None:
    bench = sync(1)
    bench.say(e.Barrier(90, e.Call(0, 1, 2), 0))
    assert not bench.applies()
    bench.say(e.Push(91, e.Call(0, 1, 1), 0, ("w@GRAD.trainer_0",)))
    assert bench.applies()[0].pushes == (91,)


def test_an_early_pull_reads_what_the_late_push_before_it_has_changed() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    bench.say(e.Pull(90, e.Call(0, 1, 2), ("w",)))
    out = bench.say(e.Push(91, e.Call(0, 1, 1), 0, ("w@GRAD",)))
    kinds = [type(o) for o in out if not isinstance(o, e.Reply) or o.ticket == 90]
    assert kinds == [e.Apply, e.Reply]


def test_a_save_that_came_early_holds_the_late_push_before_it() -> None:
    bench = Bench(mode=2)
    bench.hello(0, 1)
    bench.say(e.Checkpoint(90, e.Call(0, 1, 2), 0))
    out = bench.say(e.Push(91, e.Call(0, 1, 1), 0, ("w@GRAD",)))
    assert [type(o) for o in out if not isinstance(o, e.Reply)] == [e.Apply, e.Save]


def test_the_repeat_of_a_refused_call_is_refused_for_the_same_reason() -> None:
    bench = sync()
    first, again = bench.push(0, "v@GRAD"), bench.next()
    bench.say(e.Push(again, bench.call(0, repeat=True), 0, ("v@GRAD",)))
    assert bench.answers[again] == bench.answers[first]
    assert "owns no gradient" in bench.answers[again].text


def test_a_call_too_far_ahead_of_its_turn_is_refused_and_kept_nowhere() -> None:
    bench = sync()
    bench.say(e.Push(90, e.Call(0, 1, MAX_EARLY + 1), 0, ("w@GRAD.trainer_0",)))
    assert 90 not in bench.answers
    bench.say(e.Push(91, e.Call(0, 1, MAX_EARLY + 2), 0, ("w@GRAD.trainer_0",)))
    assert bench.answers[91].kind == "ProtocolError"
    assert "call 1026 of trainer 0 came while call 1 was missing" in bench.answers[91].text
    assert e.Discard(91) in bench.done


def test_how_many_calls_may_be_early_is_a_limit_of_the_server() -> None:
    gradients = {"w@GRAD.trainer_0": 1}
    core = Core(Settings("s0", trainers=1, blocks=(1,), gradients=gradients), Limits(early=2))
    core.handle(e.Hello(1, 0, 1, True))
    assert core.handle(e.Push(2, e.Call(0, 1, 3), 0, ("w@GRAD.trainer_0",))) == ()
    assert [type(out) for out in core.handle(e.Push(3, e.Call(0, 1, 4), 0, ()))] == [
        e.Discard,
        e.Reply,
    ]


@given(st.data())
def test_any_mixture_of_orders_and_repeats_applies_every_push_once(data: st.DataObject) -> None:
    bench = sync(2)
    rounds = 3
    for turn in range(rounds):
        calls: list[tuple[Any, e.Call, Any]] = []
        for trainer in (0, 1):
            base = 2 * turn
            names = (f"w@GRAD.trainer_{trainer}",)
            calls += [(e.Push, e.Call(trainer, 1, base + 1), names)] * data.draw(st.integers(1, 3))
            calls += [(e.Barrier, e.Call(trainer, 1, base + 2), None)] * data.draw(
                st.integers(1, 3)
            )
        for kind, call, names in data.draw(st.permutations(calls)):
            ticket = bench.next()
            bench.say(kind(ticket, call, turn, *([names] if names else [])))
        (apply,) = bench.applies()
        assert len(apply.pushes) == 2
        bench.apply_all()
    assert bench.core.version == rounds


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


# -- who is missing ----------------------------------------------------------------------------
def failed(bench: Bench) -> list[e.Failure]:
    """What the server says in its log."""
    return [done.failure for done in bench.done if isinstance(done, e.Fail)]


def failure(bench: Bench) -> e.Failure:
    """What the server has ended with."""
    assert e.Finish() in bench.done
    (failure,) = failed(bench)
    return failure


def test_a_silent_trainer_is_named_with_its_step_and_everybody_is_told() -> None:
    bench = sync()
    for trainer in (0, 1):
        bench.say(e.Heartbeat(bench.next(), trainer, 1, 37))
    waiting = bench.round(0)
    for now in range(1, 8):
        bench.say(e.Tick(float(now)))
        bench.say(e.Heartbeat(bench.next(), 0, 1, 37))
    assert waiting not in bench.answers
    bench.say(e.Tick(8.5))
    told = bench.answers[waiting]
    assert told.kind == "PeerLost"
    assert told.peer == "trainer 1"
    assert told.step == 37
    assert "last heard 8.5 s ago, at step 37; trainer 0 waited for it" in told.text
    assert failure(bench) == told


def test_a_computing_trainer_learns_of_the_end_with_its_next_heartbeat() -> None:
    bench = sync(3)
    for now in range(1, 9):
        bench.say(e.Tick(float(now)))
        for trainer in (0, 1):
            bench.say(e.Heartbeat(bench.next(), trainer, 1, 3))
    bench.say(e.Tick(9.0))
    assert [failure.peer for failure in failed(bench)] == ["trainer 2"]
    assert e.Finish() not in bench.done
    for trainer in (0, 1):
        ticket = bench.next()
        bench.say(e.Heartbeat(ticket, trainer, 1, 3))
        assert bench.answers[ticket].peer == "trainer 2"
    assert failure(bench).peer == "trainer 2"


def test_the_server_leaves_even_if_nobody_comes_to_hear_it() -> None:
    bench = sync(3)
    for now in (1.5, 3.0, 4.5, 6.0, 7.5):
        bench.say(e.Tick(now))
        for trainer in (0, 1):
            bench.say(e.Heartbeat(bench.next(), trainer, 1, 3))
    for now in (8.5, 9.0, 10.6):
        bench.say(e.Tick(now))
    assert failure(bench).peer == "trainer 2"


def test_a_trainer_whose_connection_has_ended_is_lost_after_a_short_grace() -> None:
    bench = sync()
    bench.say(e.Heartbeat(bench.next(), 1, 1, 5))
    waiting = bench.round(0)
    bench.say(e.Reset(1, 1))
    bench.say(e.Tick(0.25))
    assert waiting not in bench.answers
    bench.say(e.Tick(0.5))
    told = bench.answers[waiting]
    assert (told.kind, told.peer, told.step) == ("PeerLost", "trainer 1", 5)
    assert "trainer 1 is lost: its connection ended 0.5 s ago, at step 5" in told.text
    assert failure(bench) == told


def test_a_trainer_whose_process_has_ended_is_lost_at_once() -> None:
    bench = sync()
    bench.say(e.Heartbeat(bench.next(), 1, 1, 5))
    waiting = bench.round(0)
    bench.say(e.Reset(1, 1, ended=True))
    bench.say(e.Tick(0.0))
    told = bench.answers[waiting]
    assert (told.kind, told.peer, told.step) == ("PeerLost", "trainer 1", 5)
    assert "trainer 1 is lost: its process has ended, at step 5" in told.text


def test_of_several_ended_processes_the_one_heard_least_lately_is_blamed() -> None:
    bench = sync(3)
    bench.say(e.Tick(1.0))
    for trainer in (0, 2):
        bench.say(e.Heartbeat(bench.next(), trainer, 1, 5))
    for trainer in (0, 1, 2):
        bench.say(e.Reset(trainer, 1, ended=True))
    bench.say(e.Tick(1.1))
    beat = bench.next()
    bench.say(e.Heartbeat(beat, 2, 1, 5))
    assert "trainer 1 is lost" in bench.answers[beat].text


def test_a_finished_trainers_process_may_end() -> None:
    bench = sync()
    bench.say(e.Complete(bench.next(), 1, 1))
    bench.say(e.Reset(1, 1, ended=True))
    bench.say(e.Tick(0.5))
    assert not bench.done


def test_a_trainer_that_is_about_to_join_hears_why_it_cannot() -> None:
    bench = Bench(3)
    for trainer in (0, 1):
        bench.hello(trainer)
    for now in (1.0, 2.0):
        bench.say(e.Tick(now))
    bench.say(e.Reset(1, 1, ended=True))
    bench.say(e.Tick(2.1))
    beat = bench.next()
    bench.say(e.Heartbeat(beat, 0, 1, 0))
    assert "trainer 1 is lost" in bench.answers[beat].text
    bench.say(e.Tick(3.0))
    assert e.Finish() not in bench.done
    bench.say(e.Hello(bench.next(), 2, 1))
    assert "trainer 1 is lost" in bench.answers[bench.ticket].text
    assert failure(bench).peer == "trainer 1"


def test_a_failed_server_waits_for_newcomers_as_long_as_for_silent_trainers() -> None:
    bench = Bench(2)
    bench.hello(0)
    bench.say(e.Reset(0, 1, ended=True))
    for now in range(9):
        assert e.Finish() not in bench.done
        bench.say(e.Tick(float(now)))
    assert failure(bench).peer == "trainer 0"


def test_a_server_that_must_go_waits_for_no_newcomers() -> None:
    bench = Bench(2)
    bench.hello(0)
    bench.say(e.Abort(0, -1, 0, -1, "it was ended by SIGTERM"))
    bench.say(e.Tick(0.0))
    bench.say(e.Tick(LIMITS.farewell))
    assert "SIGTERM" in failure(bench).text


def test_a_trainer_that_asked_for_no_answer_has_not_heard_of_the_failure() -> None:
    """What answers a push may never be sent: the server stays until the trainer speaks again."""
    bench = Bench(mode=1)
    bench.hello(0, 1)
    bench.say(e.Reset(1, 1))
    bench.push(0, "w@GRAD")
    for now in (0.25, 0.5):
        bench.say(e.Tick(now))
    assert e.Finish() not in bench.done
    beat = bench.next()
    bench.say(e.Heartbeat(beat, 0, 1, 5))
    assert "trainer 1 is lost" in bench.answers[beat].text
    assert failure(bench) == bench.answers[beat]


SIGNS: dict[str, Callable[[Bench], Any]] = {
    "heartbeat": lambda bench: e.Heartbeat(bench.next(), 1, 1, 5),
    "hello": lambda bench: e.Hello(bench.next(), 1, 1),
    "call": lambda bench: e.Pull(bench.next(), bench.call(1), ("w",)),
    "complete": lambda bench: e.Complete(bench.next(), 1, 1),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_a_trainer_that_comes_back_in_time_is_not_lost(sign: str) -> None:
    bench = sync()
    bench.say(e.Reset(1, 1))
    bench.say(e.Tick(0.25))
    bench.say(SIGNS[sign](bench))
    for now in (0.5, 0.75, 1.0, 1.25):
        bench.say(e.Tick(now))
    assert not bench.done


def test_the_end_of_another_lifes_connection_means_nothing() -> None:
    bench = sync()
    bench.say(e.Reset(1, 7))
    for now in (0.25, 0.5, 0.75, 1.0):
        bench.say(e.Tick(now))
    assert not bench.done


def test_a_server_that_stood_still_hears_what_has_arrived_before_it_blames() -> None:
    bench = sync()
    bench.say(e.Reset(1, 1))
    bench.say(e.Tick(3.0))
    assert not bench.done


def test_a_failure_that_a_trainer_reports_keeps_its_name() -> None:
    bench = sync()
    waiting = bench.round(0)
    cause = "server s1 is lost: silent for 6.1 s, at step 3"
    bench.say(e.Abort(bench.next(), 1, 1, 3, cause, "PeerLost", "server s1"))
    told = bench.answers[waiting]
    assert told == e.Failure("PeerLost", f"{cause} (reported by trainer 1)", "server s1", 3)
    assert failed(bench) == [told]


def test_a_trainer_that_never_comes_is_named() -> None:
    bench = Bench(3)
    bench.hello(0)
    for now in range(1, 62):
        bench.say(e.Tick(float(now)))
        bench.say(e.Heartbeat(bench.next(), 0, 1, 0))
    assert failure(bench).text.startswith("trainers 1, 2 never connected within")


def test_a_server_that_was_stopped_itself_blames_nobody() -> None:
    bench = sync()
    bench.say(e.Tick(1.0))
    bench.say(e.Tick(1000.0))
    assert not bench.done
    for now in range(1001, 1012):
        bench.say(e.Tick(float(now)))
    assert failure(bench).kind == "PeerLost"


def test_a_trainer_without_heartbeats_may_be_quiet_for_longer() -> None:
    bench = Bench(1)
    bench.say(e.Hello(1, 0, 1, beats=False))
    for now in range(0, 100):
        bench.say(e.Tick(float(now)))
    assert not bench.done
    bench.say(e.Tick(100.5))
    assert failure(bench).peer == "trainer 0"


def test_an_abort_reaches_those_who_wait_with_its_cause() -> None:
    bench = sync()
    waiting = bench.round(0)
    bench.say(e.Abort(bench.next(), 1, 1, 12, "ValueError: bad batch"))
    told = bench.answers[waiting]
    assert told == e.Failure("Aborted", "trainer 1 gave up: ValueError: bad batch", "trainer 1", 12)
    assert failure(bench) == told


def test_a_broken_update_ends_the_job_and_says_where() -> None:
    bench = sync()
    waiting = bench.round(0)
    bench.round(1)
    bench.say(e.Broken(1, "shapes differ"))
    assert "server s0 could not compute update 1: shapes differ" in bench.answers[waiting].text


def test_a_wait_that_is_too_long_says_for_whom() -> None:
    bench = sync()
    waiting = bench.round(0)
    for now in range(1, 52):
        bench.say(e.Tick(float(now)))
        for trainer in (0, 1):
            bench.say(e.Heartbeat(bench.next(), trainer, 1, 5))
    assert bench.answers[waiting].kind == "DeadlineExceeded"
    assert "trainer 1 did not reach the barrier of round 1" in bench.answers[waiting].text


def test_a_save_that_is_refused_counts_so_that_the_trainer_can_go_on() -> None:
    core = Core(Settings(trainers=1))
    core.handle(e.Hello(1, 0, 1))
    refused = core.handle(e.Checkpoint(2, e.Call(0, 1, 1), 3, fault="not there"))
    assert [i.answer.text for i in refused if isinstance(i, e.Reply)] == ["not there"]
    assert not any(isinstance(i, e.Save) for i in refused)
    (reply,) = [i for i in core.handle(e.Pull(3, e.Call(0, 1, 2))) if isinstance(i, e.Reply)]
    assert isinstance(reply.answer, e.Send)
