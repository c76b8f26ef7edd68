"""Every call counts once at the core of a server, however often and in whatever order it comes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bireme.net import messages as m
from bireme.pserver.rules import events as e
from bireme.pserver.rules.calls import MAX_EARLY
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import Settings

from .core_driver import CoreDriver, barrier, hello, pull, push, save, sync


def test_a_repeated_push_is_answered_and_not_applied() -> None:
    driver = sync()
    driver.push(0, "w@GRAD.trainer_0")
    again = driver.next()
    driver.say(push(again, driver.call(0, repeat=True), 0, ("w@GRAD.trainer_0",)))
    assert driver.answers[again] == m.Accepted()
    assert e.Discard(again) in driver.done


def test_a_repeated_barrier_counts_once() -> None:
    driver = sync()
    driver.push(0, "w@GRAD.trainer_0")
    driver.barrier(0)
    driver.say(barrier(driver.next(), driver.call(0, repeat=True), 0))
    assert not driver.applies()


def test_the_repeat_of_a_waiting_pull_waits_beside_it() -> None:
    driver = sync()
    first = driver.round(0)
    again = driver.next()
    driver.say(pull(again, driver.call(0, repeat=True), ("w",)))
    driver.round(1)
    driver.apply_all()
    assert driver.answers[first] == driver.answers[again] == e.Send(("w",), 1)


def test_the_repeat_of_an_answered_pull_is_answered_again() -> None:
    driver = sync()
    driver.pull(0)
    again = driver.next()
    driver.say(pull(again, driver.call(0, repeat=True), ("w",)))
    assert driver.answers[again] == e.Send(("w",), 0)


def test_a_call_that_comes_before_its_turn_waits_for_it() -> None:
    driver = sync(1)
    driver.say(barrier(90, e.Call(0, 1, 2), 0))
    assert not driver.applies()
    driver.say(push(91, e.Call(0, 1, 1), 0, ("w@GRAD.trainer_0",)))
    assert driver.applies()[0].pushes == (91,)


def test_an_early_pull_reads_what_the_late_push_before_it_has_changed() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    driver.say(pull(90, e.Call(0, 1, 2), ("w",)))
    out = driver.say(push(91, e.Call(0, 1, 1), 0, ("w@GRAD",)))
    kinds = [type(o) for o in out if not isinstance(o, e.Reply) or o.ticket == 90]
    assert kinds == [e.Apply, e.Reply]


def test_a_save_that_came_early_holds_the_late_push_before_it() -> None:
    driver = CoreDriver(mode=2)
    driver.hello(0, 1)
    driver.say(save(90, e.Call(0, 1, 2), 0))
    out = driver.say(push(91, e.Call(0, 1, 1), 0, ("w@GRAD",)))
    assert [type(o) for o in out if not isinstance(o, e.Reply)] == [e.Apply, e.Save]


def test_the_repeat_of_a_refused_call_is_refused_for_the_same_reason() -> None:
    driver = sync()
    first, again = driver.push(0, "v@GRAD"), driver.next()
    driver.say(push(again, driver.call(0, repeat=True), 0, ("v@GRAD",)))
    assert driver.answers[again] == driver.answers[first]
    assert "owns no gradient" in driver.answers[again].text


def test_a_call_too_far_ahead_of_its_turn_is_refused_and_kept_nowhere() -> None:
    driver = sync()
    driver.say(push(90, e.Call(0, 1, MAX_EARLY + 1), 0, ("w@GRAD.trainer_0",)))
    assert 90 not in driver.answers
    driver.say(push(91, e.Call(0, 1, MAX_EARLY + 2), 0, ("w@GRAD.trainer_0",)))
    assert driver.answers[91].kind == "ProtocolError"
    assert "call 1026 of trainer 0 came while call 1 was missing" in driver.answers[91].text
    assert e.Discard(91) in driver.done


def test_how_many_calls_may_be_early_is_a_limit_of_the_server() -> None:
    gradients = {"w@GRAD.trainer_0": 1}
    core = Core(Settings("s0", trainers=1, blocks=(1,), gradients=gradients), Limits(early=2))
    core.handle(hello(1, 0, 1))
    assert core.handle(push(2, e.Call(0, 1, 3), 0, ("w@GRAD.trainer_0",))) == ()
    assert [type(out) for out in core.handle(push(3, e.Call(0, 1, 4), 0, ()))] == [
        e.Discard,
        e.Reply,
    ]


@given(st.data())
def test_any_mixture_of_orders_and_repeats_applies_every_push_once(data: st.DataObject) -> None:
    driver = sync(2)
    rounds = 3
    for turn in range(rounds):
        calls: list[tuple[Any, e.Call, Any]] = []
        for trainer in (0, 1):
            base = 2 * turn
            names = (f"w@GRAD.trainer_{trainer}",)
            calls += [(push, e.Call(trainer, 1, base + 1), names)] * data.draw(st.integers(1, 3))
            calls += [(barrier, e.Call(trainer, 1, base + 2), None)] * data.draw(st.integers(1, 3))
        for kind, call, names in data.draw(st.permutations(calls)):
            ticket = driver.next()
            driver.say(kind(ticket, call, turn, *([names] if names else [])))
        (apply,) = driver.applies()
        assert len(apply.pushes) == 2
        driver.apply_all()
    assert driver.core.version == rounds


def test_a_save_that_is_refused_counts_so_that_the_trainer_can_go_on() -> None:
    core = Core(Settings(trainers=1))
    core.handle(hello(1, 0, 1))
    refused = core.handle(save(2, e.Call(0, 1, 1), 3, fault="not there"))
    assert [i.answer.text for i in refused if isinstance(i, e.Reply)] == ["not there"]
    assert not any(isinstance(i, e.Save) for i in refused)
    (reply,) = [i for i in core.handle(pull(3, e.Call(0, 1, 2))) if isinstance(i, e.Reply)]
    assert isinstance(reply.answer, e.Send)
