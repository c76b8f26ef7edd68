"""A server that continues the work of one that was killed: whom it knows, what it answers."""

from typing import Any

import pytest

from bireme.net.messages import NOT_GREETED
from bireme.pserver import events as e
from bireme.pserver.core import Core
from bireme.pserver.job_record import Known, KnownTrainer

from .bench import LIMITS, Bench

NEXT = 5  # the first call of each trainer that may not have taken effect


def successor(left: tuple[int, ...] = (), gathered: Any = ((), {})) -> Bench:
    """The bench of a server whose record ends with round 3."""
    bench = Bench()
    trainers = {t: KnownTrainer(t, 1, True, t in left, NEXT) for t in (0, 1)}
    bench.core = Core(bench.core._settings, LIMITS, Known(3, (7, 8), trainers, gathered))
    bench.sequence = {0: NEXT - 1, 1: NEXT - 1}
    bench.say(e.Tick(100.0))
    return bench


def applied(bench: Bench) -> list[e.Apply]:
    return [done for done in bench.done if isinstance(done, e.Apply)]


def test_what_took_effect_is_answered_and_not_applied_again() -> None:
    bench = successor()
    bench.hello(0, 1)
    for trainer in (0, 1):
        for sequence, event in ((NEXT - 2, e.Push), (NEXT - 1, e.Barrier)):
            call, names = e.Call(trainer, 1, sequence), (f"w@GRAD.trainer_{trainer}",)
            more = (0, names) if event is e.Push else (0,)
            bench.say(event(bench.next(), call, *more))
            assert bench.answers[bench.ticket] == e.Accepted()
        bench.say(e.Pull(bench.next(), e.Call(trainer, 1, NEXT), ("w",)))
        assert bench.answers[bench.ticket] == e.Send(("w",), 3)
    assert not applied(bench)


def test_the_next_round_is_numbered_on() -> None:
    bench = successor()
    bench.hello(0, 1)
    for trainer in (0, 1):
        bench.push(trainer, f"w@GRAD.trainer_{trainer}")
        bench.barrier(trainer)
    (update,) = applied(bench)
    assert update.number == 4
    assert update.barriers == (e.Call(0, 1, NEXT + 1), e.Call(1, 1, NEXT + 1))


def test_calls_that_a_trainer_will_not_repeat_are_over() -> None:
    bench = successor()
    bench.say(e.Hello(bench.next(), 0, 1, first=NEXT + 3, seen=3))
    bench.say(e.Pull(bench.next(), e.Call(0, 1, NEXT + 3), ("w",)))
    assert bench.answers[bench.ticket] == e.Send(("w",), 3)


def test_calls_of_a_trainer_that_has_not_greeted_are_to_be_repeated() -> None:
    bench = successor()
    pull = e.Pull(bench.next(), e.Call(0, 1, NEXT + 3), ("w",))
    bench.say(pull)
    assert bench.answers[bench.ticket].kind == NOT_GREETED
    bench.say(e.Hello(bench.next(), 0, 1, first=NEXT + 3, seen=3))
    bench.say(pull)
    assert bench.answers[pull.ticket] == e.Send(("w",), 3)


def test_heartbeats_count_before_the_trainer_has_greeted() -> None:
    bench = successor()
    bench.say(e.Heartbeat(bench.next(), 1, 1, 3))
    assert bench.answers[bench.ticket] == e.Accepted()


def test_silence_is_counted_from_the_begin_of_this_life() -> None:
    bench = successor()
    bench.hello(0)
    bench.say(e.Tick(101.0))
    assert not [done for done in bench.done if isinstance(done, e.Fail)]
    for second in range(102, 120):
        bench.say(e.Tick(float(second)))
        bench.say(e.Heartbeat(bench.next(), 0, 1, 3))
    assert "trainer 1 is lost" in bench.answers[bench.ticket].text


def test_another_life_of_a_trainer_begins_the_job_anew() -> None:
    bench = successor()
    bench.hello(0, incarnation=2)
    assert bench.done == [e.StartOver()]
    assert bench.ticket not in bench.answers  # it greets again


@pytest.mark.parametrize("sign", ["hello", "heartbeat"])
def test_while_one_trainer_is_there_another_life_of_any_is_a_stranger(sign: str) -> None:
    bench = successor()
    if sign == "hello":
        bench.hello(1)
    else:
        bench.say(e.Heartbeat(bench.next(), 1, 1, 3))
    bench.hello(0, incarnation=2)
    assert not bench.done
    assert isinstance(bench.answers[bench.ticket], e.Failure)


def test_a_record_that_has_lost_what_was_answered_is_refused() -> None:
    bench = successor()
    bench.say(e.Hello(bench.next(), 0, 1, seen=4))
    assert "ends with round 3, but trainer 0 has seen round 4" in bench.answers[bench.ticket].text


def test_shared_arrays_are_sent_again() -> None:
    calls = (e.Call(0, 1, NEXT - 1), e.Call(1, 1, NEXT - 1))
    bench = successor(gathered=(calls, {}))
    bench.hello(0, 1)
    bench.say(e.Share(bench.next(), calls[1], 3))
    assert bench.answers[bench.ticket] == e.Shared((), 0, calls)


def test_where_all_have_finished_it_stays_for_repeats() -> None:
    bench = successor(left=(0, 1))
    bench.say(e.Complete(bench.next(), 1, 1))
    assert bench.answers[bench.ticket] == e.Accepted()
    assert not bench.done
    for now in (1, 2):
        bench.say(e.Tick(100.0 + LIMITS.farewell * now / 2))
    assert bench.done == [e.Finish()]
