"""What is done for a parameter does not depend on how many others there are."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

import bireme as fluid
from bireme import layers as L
from bireme.ir import Program

ENDPOINTS = "127.0.0.1:6174,127.0.0.1:6175"


def _opcodes(run: Callable[[], Any]) -> int:
    """The number of instructions of the interpreter that a call takes."""
    count = 0

    def local(frame: Any, event: str, given: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return local

    def begun(frame: Any, event: str, given: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(begun)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


class _Job:
    """The steps of a job that begins, in order, for a number of parameters."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.main, self.startup = Program(), Program()
        self.executor = fluid.Executor()
        self.transpiler = fluid.DistributeTranspiler()

    def build(self) -> None:
        zero = fluid.initializer.Constant(0.0)
        with fluid.program_guard(self.main, self.startup):
            parameters = [
                L.create_parameter([1], "float32", name=f"p{i}", default_initializer=zero)
                for i in range(self.count)
            ]
            self.loss = L.mean(L.sum(parameters))

    def draw(self) -> None:
        with fluid.program_guard(Program(), Program()):
            for _ in range(self.count):
                L.uniform_random([1])

    def minimize(self) -> None:
        with fluid.program_guard(self.main, self.startup):
            fluid.optimizer.SGD(0.1).minimize(self.loss)

    def start(self) -> None:
        self.executor.run(self.startup)

    def step(self) -> None:
        self.executor.run(self.main, fetch_list=[self.loss])

    def split(self) -> None:
        self.transpiler.transpile(0, self.main, ENDPOINTS, trainers=2, startup_program=self.startup)

    def serve(self) -> None:
        self.transpiler.get_pserver_programs(ENDPOINTS.partition(",")[0])


STEPS = ("build", "draw", "minimize", "start", "step", "split", "serve")


def _costs(count: int) -> dict[str, int]:
    job = _Job(count)
    with fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        return {name: _opcodes(getattr(job, name)) for name in STEPS}


@pytest.fixture(scope="module")
def costs() -> list[dict[str, int]]:
    """The instructions of every step, for 20, 60 and 180 parameters."""
    _costs(1)  # what is imported and remembered once
    return [_costs(count) for count in (20, 60, 180)]


@pytest.mark.parametrize("step", STEPS)
def test_work_grows_with_the_number_of_parameters_only(
    step: str, costs: list[dict[str, int]]
) -> None:
    few, some, many = (cost[step] for cost in costs)
    assert (many - some) / 120 <= 1.1 * (some - few) / 40
