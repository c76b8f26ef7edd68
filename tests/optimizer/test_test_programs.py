"""`clone(for_test=True)` has what Fluid 1.8.5's has: nothing of an optimizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bireme as fluid
from bireme import layers as L

VARIABLES = ["fc_0.tmp_0", "fc_0.w_0", "mean_0.tmp_0", "x"]


def _loss() -> fluid.Variable:
    loss: fluid.Variable = L.mean(L.fc(fluid.data("x", [None, 2]), 1, bias_attr=False))
    return loss


def _adam(loss: fluid.Variable) -> Any:
    fluid.optimizer.Adam(0.1).minimize(loss)


def _scheduled(loss: fluid.Variable) -> Any:
    fluid.optimizer.Adam(L.exponential_decay(0.1, 10, 0.5)).minimize(loss)


def _averaged(loss: fluid.Variable) -> Any:
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    fluid.optimizer.ModelAverage(0.9)


@pytest.mark.parametrize("trained", [_adam, _scheduled, _averaged])
def test_only_what_the_model_uses_is_declared_and_saved(
    trained: Callable[[fluid.Variable], Any], tmp_path: Path
) -> None:
    loss = _loss()
    L.create_parameter([2], "float32", name="idle")
    trained(loss)
    test = fluid.default_main_program().clone(for_test=True)
    assert sorted(v.name for v in test.list_vars()) == VARIABLES
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path), test)
    assert [p.name for p in tmp_path.iterdir()] == ["fc_0.w_0"]
    fluid.io.load_persistables(exe, str(tmp_path), test)


def test_what_is_fed_stays_declared() -> None:
    loss = _loss()
    fluid.data("label", [None, 1])
    _adam(loss)
    test = fluid.default_main_program().clone(for_test=True)
    assert sorted(v.name for v in test.list_vars()) == sorted([*VARIABLES, "label"])


def test_a_program_that_minimizes_nothing_keeps_what_it_declares_and_its_gradients() -> None:
    loss = _loss()
    (slope,) = fluid.gradients(loss, fluid.default_main_program().all_parameters())
    L.create_parameter([2], "float32", name="idle")
    main = fluid.default_main_program()
    test = main.clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == [
        op.type for op in main.global_block().ops
    ]
    assert {slope.name, "idle"} <= set(test.global_block().vars)
