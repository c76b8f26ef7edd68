"""The core does the work of an event in constant time, whatever the number of trainers."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from bireme.pserver.rules import events as e

from .core_driver import CoreDriver, abort, complete, heartbeat

FEW, MANY = 8, 400


def cost(action: Callable[[], object]) -> int:
    """How many instructions of the interpreter `action` takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def costs(trainers: int, mode: int) -> dict[str, int]:
    """The cost of one event of each kind, in a job where all but the last trainer have pushed."""
    driver = CoreDriver(trainers, mode=mode)
    found = {}
    for trainer in range(trainers):
        found["hello"] = cost(lambda at=trainer: driver.hello(at))  # type: ignore[misc]
    suffix = "" if mode else ".trainer_{}"
    for trainer in range(trainers - 1):
        name = "w@GRAD" + suffix.format(trainer)
        found["push"] = cost(lambda at=trainer, n=name: driver.push(at, n))  # type: ignore[misc]
        if not mode:
            found["barrier"] = cost(lambda at=trainer: driver.barrier(at))  # type: ignore[misc]
        found["pull"] = cost(lambda at=trainer: driver.pull(at))  # type: ignore[misc]
    found["heartbeat"] = cost(lambda: driver.say(heartbeat(driver.next(), 1, 1, 3)))
    found["reset"] = cost(lambda: driver.say(e.Reset(1, 1)))
    found["tick"] = cost(lambda: driver.say(e.Tick(0.01)))
    found["back"] = cost(lambda: driver.say(heartbeat(driver.next(), 1, 1, 3)))
    found["complete"] = cost(lambda: driver.say(complete(driver.next(), trainers - 1, 1)))
    return found


@pytest.mark.parametrize("mode", [0, 1], ids=["sync", "async"])
def test_an_event_costs_the_same_with_few_trainers_and_with_many(mode: int) -> None:
    few, many = costs(FEW, mode), costs(MANY, mode)
    if mode == 0:  # this one ends the round: it names every trainer's push once
        assert many.pop("complete") <= few.pop("complete") * MANY / FEW
    assert few == many


def test_a_failed_server_turns_calls_away_at_the_same_cost() -> None:
    def turned_away(trainers: int) -> int:
        driver = CoreDriver(trainers)
        driver.hello(*range(trainers))
        driver.say(abort(driver.next(), 0, 1, 3, "why"))
        return cost(lambda: driver.say(heartbeat(driver.next(), 1, 1, 3)))

    assert turned_away(FEW) == turned_away(MANY)
