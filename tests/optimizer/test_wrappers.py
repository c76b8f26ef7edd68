"""Averages, slow weights, merged gradients and recomputed activations do what their papers say."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.optimizer import (
    SGD,
    Adam,
    ExponentialMovingAverage,
    GradientMergeOptimizer,
    LookaheadOptimizer,
    ModelAverage,
    Momentum,
    RecomputeOptimizer,
)

from .training import Trained, batches

STEPS = batches(7)
_COUNTS = ("num_accumulates", "old_num_accumulates")


def _history(model: Trained) -> list[dict[str, Any]]:
    """The parameters after each of the steps."""
    found = []
    for feed in STEPS:
        model.step(feed)
        found.append(model.parameters())
    return found


# -- averages ----------------------------------------------------------------------------------
def test_a_model_average_is_the_mean_of_the_window() -> None:
    def minimize(loss: Any) -> ModelAverage:
        SGD(0.1).minimize(loss)
        return ModelAverage(0.5, min_average_window=2, max_average_window=100)

    model = Trained(minimize)
    history = _history(model)
    with fluid.scope_guard(model.scope), model.made.apply(model.exe):
        averaged = model.parameters()
    # a window closes when it has half of all steps, and two: after steps 2, 4 and 7
    size = [int(model.value(f"w1_{name}_0")[0]) for name in _COUNTS]
    assert size == [0, 3]
    for name, last in history[-1].items():
        expected = np.mean([step[name] for step in history[-3:]], axis=0)
        np.testing.assert_allclose(averaged[name], expected, rtol=1e-5)
        np.testing.assert_array_equal(model.value(name), last)


def test_parameters_stay_averaged_until_they_are_restored() -> None:
    def minimize(loss: Any) -> ModelAverage:
        SGD(0.1).minimize(loss)
        return ModelAverage(1.0, min_average_window=100, max_average_window=100)

    model = Trained(minimize)
    history = _history(model)
    with fluid.scope_guard(model.scope):
        with model.made.apply(model.exe, need_restore=False):
            pass
        mean = np.mean([step["w1"] for step in history], axis=0)
        np.testing.assert_allclose(model.value("w1"), mean, rtol=1e-5)
        model.made.restore(model.exe)
    np.testing.assert_array_equal(model.value("w1"), history[-1]["w1"])


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_moving_average_follows_the_parameters(scheduled: bool) -> None:
    def minimize(loss: Any) -> ExponentialMovingAverage:
        SGD(0.1).minimize(loss)
        steps = fluid.layers.autoincreased_step_counter() if scheduled else None
        average = ExponentialMovingAverage(0.8, thres_steps=steps)
        average.update()
        return average

    model = Trained(minimize)
    expected, decay = np.zeros((4, 5)), 0.0
    for t, step in enumerate(_history(model), start=1):
        decay = min(0.8, (t + 1) / (t + 10)) if scheduled else 0.8
        expected = decay * expected + (1 - decay) * step["w1"]
    last = model.value("w1")
    with fluid.scope_guard(model.scope):
        for _ in range(2):  # applying must not change the average
            with model.made.apply(model.exe):
                found = model.value("w1")
            np.testing.assert_allclose(found, expected / (1 - decay**7), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.value("w1"), last)


# -- slow weights ------------------------------------------------------------------------------
def test_lookahead_pulls_fast_and_slow_weights_together_every_k_steps() -> None:
    model = Trained(lambda loss: LookaheadOptimizer(SGD(0.1), alpha=0.3, k=3).minimize(loss))
    plain = Trained(lambda loss: SGD(0.1).minimize(loss))
    slow = plain.parameters()
    np.testing.assert_array_equal(model.value("w1@SLOW"), slow["w1"])
    for t, feed in enumerate(STEPS, start=1):
        model.step(feed)
        plain.step(feed)
        if t % 3 == 0:
            slow = {n: (0.3 * v + 0.7 * slow[n]) for n, v in plain.parameters().items()}
            for name, value in slow.items():
                tensor = plain.scope.find_var(name).get_tensor()
                tensor.set(value.astype("float32"), fluid.CPUPlace())
        for name, value in plain.parameters().items():
            np.testing.assert_allclose(model.value(name), value, rtol=1e-5, atol=1e-7)


# -- merged gradients --------------------------------------------------------------------------
@pytest.mark.parametrize("inner", [lambda: SGD(0.1), lambda: Adam(0.01)])
def test_merged_gradients_equal_one_large_batch(inner: Any) -> None:
    merged = Trained(lambda loss: GradientMergeOptimizer(inner(), k_steps=2).minimize(loss))
    whole = Trained(lambda loss: inner().minimize(loss))
    for first, second in zip(STEPS[0:6:2], STEPS[1:6:2], strict=True):
        before = merged.parameters()
        merged.step(first)
        for name, value in merged.parameters().items():
            np.testing.assert_array_equal(value, before[name])
        merged.step(second)
        whole.step({k: np.concatenate([first[k], second[k]]) for k in first})
        for name, value in whole.parameters().items():
            np.testing.assert_allclose(merged.value(name), value, rtol=1e-4, atol=1e-6)


def test_merging_one_step_is_the_inner_optimizer() -> None:
    one = Trained(lambda loss: GradientMergeOptimizer(SGD(0.1), k_steps=1).minimize(loss))
    plain = Trained(lambda loss: SGD(0.1).minimize(loss))
    types = [[op.type for op in made.main.global_block().ops] for made in (one, plain)]
    assert types[0] == types[1]
    assert one.train(STEPS) == plain.train(STEPS)


# -- recomputed activations --------------------------------------------------------------------
def deep(keep: list[Any]) -> Any:
    x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
    hidden = x
    for i in range(4):
        hidden = fluid.layers.fc(hidden, 6, act="tanh", param_attr=f"w{i}", bias_attr=f"b{i}")
        hidden = fluid.layers.dropout(hidden, 0.3)
        if i in (1, 2):
            keep.append(hidden)
    guess = fluid.layers.fc(hidden, 1, param_attr="w", bias_attr="b")
    return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))


def _recomputing(inner: Any, keep: list[Any]) -> Any:
    optimizer = RecomputeOptimizer(inner)
    optimizer._set_checkpoints(keep)
    return optimizer


def test_recomputing_changes_no_bit_of_the_result() -> None:
    keep: list[Any] = []
    model = Trained(
        lambda loss: _recomputing(Momentum(0.1, 0.9), keep).minimize(loss), lambda: deep(keep)
    )
    plain = Trained(lambda loss: Momentum(0.1, 0.9).minimize(loss), lambda: deep([]))
    assert model.train(STEPS) == plain.train(STEPS)
    for name, value in plain.parameters().items():
        np.testing.assert_array_equal(model.value(name), value)


def test_only_what_lies_between_checkpoints_is_computed_twice() -> None:
    keep: list[Any] = []
    model = Trained(lambda loss: _recomputing(SGD(0.1), keep).minimize(loss), lambda: deep(keep))
    ops = model.main.global_block().ops
    again = [op.type for op in ops if op.role == 1 and "_grad" not in op.type]
    assert again.count("mul") == 3
    assert again.count("dropout") == 3  # for their masks, although two outputs are kept
    made = [n for op in ops if op.type == "mul" and op.role == 1 for n in op.output_arg_names]
    assert all(".subprog_" in name for name in made)


def test_recompute_needs_checkpoints_on_the_way_to_the_loss() -> None:
    with pytest.raises(InvalidArgument, match="no checkpoints"):
        Trained(lambda loss: RecomputeOptimizer(SGD(0.1)).minimize(loss))
    with pytest.raises(InvalidArgument, match="not computed on the way"):
        Trained(lambda loss: _recomputing(SGD(0.1), ["nobody"]).minimize(loss))


def test_a_branch_cannot_be_recomputed() -> None:
    keep: list[Any] = []

    def model() -> Any:
        x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(x, 3)
        flag = fluid.layers.fill_constant([1], "bool", 1)
        chosen = fluid.layers.cond(flag, lambda: hidden * 2.0, lambda: hidden * 3.0)
        keep.append(fluid.layers.tanh(chosen))
        guess = fluid.layers.fc(keep[0], 1)
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))

    with pytest.raises(UnsupportedError, match="cannot be recomputed"):
        Trained(lambda loss: _recomputing(SGD(0.1), keep).minimize(loss), model)


@pytest.mark.parametrize(
    "build",
    [
        lambda: LookaheadOptimizer(SGD(0.1), alpha=1.5),
        lambda: LookaheadOptimizer(SGD(0.1), k=0),
        lambda: LookaheadOptimizer("sgd"),  # the mistake under test
        lambda: GradientMergeOptimizer(SGD(0.1), k_steps=0),
    ],
)
def test_wrong_arguments_are_refused(build: Any) -> None:
    with pytest.raises(InvalidArgument):
        build()
