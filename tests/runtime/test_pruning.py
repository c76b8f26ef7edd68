"""`use_prune` runs what the fetches need and every update, as Fluid 1.8.5 does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import FeedError
from bireme.runtime.compile import Request, compile

X = {"x": np.ones((1, 2), "float32")}
Given = tuple[fluid.Variable, fluid.Variable, Any]


def _model(schedule: bool = False) -> Given:
    """A hidden layer, its mean, and the result of minimizing it; other layers need y."""
    attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
    hidden = L.fc(fluid.data("x", [None, 2]), 1, param_attr=attr, bias_attr=False)
    L.mean(fluid.data("y", [None, 1]))
    loss = L.mean(hidden)
    L.increment(L.create_global_var([1], 0.0, "float32", persistable=True, name="count"))
    rate = L.exponential_decay(0.5, 10, 0.5) if schedule else 0.5
    return hidden, loss, fluid.optimizer.SGD(rate).minimize(loss)


def _value(name: str) -> float:
    return float(np.asarray(fluid.global_scope().find_var(name).get_tensor()).reshape(-1)[0])


def _run(fetches: Any, program: Any = None, **given: Any) -> list[Any]:
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    found: list[Any] = exe.run(program, feed=X, fetch_list=fetches, **given)
    return found


FETCHES: list[Callable[[Given], Any]] = [
    lambda m: [m[1]],
    lambda m: m[0],
    lambda m: m[1].name,
    lambda m: None,
    lambda m: [m[1], m[2]],
]


@pytest.mark.parametrize("fetches", FETCHES)
@pytest.mark.parametrize("compiled", [False, True])
def test_updates_run_and_idle_layers_do_not(
    fetches: Callable[[Given], Any], compiled: bool
) -> None:
    made = _model()
    program = fluid.CompiledProgram(fluid.default_main_program()) if compiled else None
    _run(fetches(made), program, use_prune=True)
    assert (_value("w"), _value("count")) == (0.5, 0.0)


UPDATES: list[Callable[[Any], Any]] = [
    lambda result: result,
    lambda result: result[0],
    lambda result: result[0][0],
]


@pytest.mark.parametrize("update", UPDATES)
def test_an_update_in_a_fetch_list_prunes(update: Callable[[Any], Any]) -> None:
    hidden, _, result = _model()
    (found,) = _run([hidden, update(result)])
    assert (found.item(), _value("w"), _value("count")) == (2.0, 0.5, 0.0)
    assert fluid.Executor().run(feed=X, fetch_list=update(result)) == []
    assert (_value("w"), _value("count")) == (0.0, 0.0)


def test_the_schedule_of_an_update_runs() -> None:
    _, loss, _ = _model(schedule=True)
    _run([loss], use_prune=True)
    assert (_value("w"), _value("@LR_DECAY_COUNTER@")) == (0.5, 0.0)


def test_replicas_are_pruned_too() -> None:
    _, loss, _ = _model()
    program = fluid.CompiledProgram(fluid.default_main_program())
    program.with_data_parallel(loss.name, places=[fluid.CPUPlace()] * 2)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(program, feed=[X, X], fetch_list=[loss], use_prune=True)
    assert (_value("w"), _value("count")) == (0.5, 0.0)


def test_what_an_update_needs_must_be_fed() -> None:
    _model()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    with pytest.raises(FeedError, match="'x' is not fed"):
        exe.run(feed={}, fetch_list=["count"], use_prune=True)


def test_a_test_program_runs_what_is_fetched_only() -> None:
    hidden, _, _ = _model()
    _run([hidden], fluid.default_main_program().clone(for_test=True), use_prune=True)
    assert _value("w") == 1.0


def test_what_a_trainer_sends_and_receives_stays() -> None:
    hidden, _, _ = _model()
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, pservers="127.0.0.1:6174", trainers=1)
    block = transpiler.get_trainer_program(wait_port=False).global_block()
    request = Request(0, ("x",), (hidden.name,), fluid.CPUPlace(), prune=True)
    kept = {op.type for unit in compile(block, request).units for op in unit.ops}
    assert {"send", "send_barrier", "recv", "fetch_barrier"} <= kept
    assert "increment" not in kept
