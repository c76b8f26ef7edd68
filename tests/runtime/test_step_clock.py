"""Where a step's time goes: phases by the roles of operators, measured by an invented clock."""

import threading

import numpy as np
import pytest

import bireme as fluid
from bireme.monitoring import step_clock as module
from bireme.monitoring.counters import Tally, tally
from bireme.monitoring.step_clock import (
    BACKWARD,
    DATA,
    FORWARD,
    PHASES,
    RECEIVE,
    SEND,
    UPDATE,
    WAIT,
    StepClock,
)
from bireme.runtime.phases import phases_of
from bireme.runtime.scope import Scope


class Time:
    now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(StepClock, "_ended", 0.0)
    return made


def test_every_second_of_a_step_belongs_to_one_phase(time: Time) -> None:
    clock = StepClock()
    clock.begin()
    for phase, seconds in [(FORWARD, 1), (BACKWARD, 2), (SEND, 4), (BACKWARD, 8), (WAIT, 16)]:
        clock.enter(phase)
        time.now += seconds
    assert clock.enter(RECEIVE) == WAIT
    time.now += 32
    found = clock.end()
    assert dict(zip(PHASES, found, strict=True)) == {
        "data": 0, "forward": 1, "backward": 10, "send": 4, "wait": 16, "receive": 32, "update": 0,
    }  # fmt: skip


def test_time_between_two_steps_is_for_data(time: Time) -> None:
    clock = StepClock()
    clock.begin()
    assert clock.end()[DATA] == 0
    time.now += 3
    clock.enter(SEND)  # no step runs: nobody counts this
    clock.begin()
    time.now += 1
    assert clock.end() == [3, 1, 0, 0, 0, 0, 0]


def test_other_threads_run_no_step(time: Time) -> None:
    clock = StepClock()
    clock.begin()
    other = threading.Thread(target=clock.enter, args=(WAIT,))
    other.start()
    other.join()
    time.now += 5
    assert clock.end()[FORWARD] == 5


def test_a_training_step_is_divided_and_another_run_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Tally()
    monkeypatch.setattr("bireme.runtime.executor.tally", books)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        loss = fluid.layers.mean(fluid.layers.fc(x, 3))
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
    scope, exe = Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((2, 4), "float32")}
    exe.run(test, feed, [loss], scope=scope)
    assert [h.count for h in books.phases] == [0] * len(PHASES)
    for _ in range(3):
        exe.run(main, feed, [loss], scope=scope)
    counts = dict(zip(PHASES, (h.count for h in books.phases), strict=True))
    assert (counts["forward"], counts["backward"], counts["update"]) == (3, 3, 3)
    assert counts["send"] == counts["wait"] == counts["receive"] == 0
    parts = sum(h.total for h in books.phases[FORWARD:])
    assert parts == pytest.approx(books.step_seconds.total)
    assert tally is not books


def test_a_loss_that_is_fetched_is_seen_by_those_who_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Tally()
    monkeypatch.setattr("bireme.runtime.executor.tally", books)
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        hidden = fluid.layers.fc(x, 3)
        loss = fluid.layers.mean(hidden)
        fluid.optimizer.SGD(0.1).minimize(loss)
    scope, exe = Scope(), fluid.Executor(fluid.CPUPlace())
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((2, 4), "float32")}
    exe.run(main, feed, [hidden], scope=scope)
    assert books.gauges == {}
    _, value = exe.run(main, feed, [hidden, loss], scope=scope)
    assert books.gauges == {"bireme_loss": value.item()}


def test_operators_of_communication_belong_to_their_neighbours() -> None:
    roles = [0, 256, 1, 4, 1, 16, 2]
    units = [_Unit((_Op(role),), step=print) for role in roles]
    units[3:3] = [_Unit((_Op(4),), step=None)]
    found = list(phases_of(units))
    assert found == [FORWARD, FORWARD, BACKWARD, SEND, BACKWARD, BACKWARD, UPDATE, UPDATE]


class _Op:
    def __init__(self, role: int) -> None:
        self.role = role


class _Unit:
    def __init__(self, ops: tuple[_Op, ...], step: object) -> None:
        self.ops, self.step = ops, step
