"""The doors of the optimizers: which parameters, which rates, which state; clipping by value of a
gradient's way.
"""

import warnings
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.clip import (
    ErrorClipByValue,
    GradientClipByGlobalNorm,
    GradientClipByNorm,
    GradientClipByValue,
    set_gradient_clip,
)
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.optimizer import SGD, Adam, Dpsgd, Lamb, Momentum
from bireme.regularizer import L1Decay, L2Decay

from .training import Trained, batches, mlp

(FEED,) = batches(1)
GRADS = ["b1@GRAD", "b2@GRAD", "w1@GRAD", "w2@GRAD"]


def moved(optimizer: Any, before: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """How far each parameter moves in one step at rate 1, and its gradient before clipping."""

    def minimize(loss: Any) -> None:
        if before is not None:
            before()
        optimizer().minimize(loss)

    model = Trained(minimize)
    start = model.parameters()
    found = model.step(FEED, GRADS)
    grads = {n[:2]: g for n, g in zip(GRADS, found[1:], strict=True)}
    return {n: start[n] - value for n, value in model.parameters().items()}, grads


# -- clipping ----------------------------------------------------------------------------------
DOORS = ["argument", "mark"]


def _clipped(clip: Any, door: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if door == "argument":
        return moved(lambda: SGD(1.0, grad_clip=clip))
    return moved(lambda: SGD(1.0), lambda: set_gradient_clip(clip))


@pytest.mark.parametrize("door", DOORS)
def test_values_are_clipped(door: str) -> None:
    steps, grads = _clipped(GradientClipByValue(max=0.05, min=-0.01), door)
    for name, step in steps.items():
        np.testing.assert_allclose(step, np.clip(grads[name], -0.01, 0.05), atol=1e-6)


@pytest.mark.parametrize("door", DOORS)
def test_each_norm_is_clipped(door: str) -> None:
    steps, grads = _clipped(GradientClipByNorm(0.1), door)
    for name, step in steps.items():
        size = np.linalg.norm(grads[name])
        np.testing.assert_allclose(step, grads[name] * min(1, 0.1 / size), atol=1e-6)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("limit", [0.1, 100.0])
def test_the_norm_of_all_is_clipped(door: str, limit: float) -> None:
    steps, grads = _clipped(GradientClipByGlobalNorm(limit), door)
    size = np.sqrt(sum((g**2).sum() for g in grads.values()))
    for name, step in steps.items():
        np.testing.assert_allclose(step, grads[name] * min(1, limit / size), atol=1e-6)


@pytest.mark.parametrize(
    "clip", [GradientClipByValue(1.0), GradientClipByNorm(1.0), GradientClipByGlobalNorm(1.0)]
)
def test_pairs_without_a_gradient_are_dropped(clip: Any) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        used, unused = (fluid.layers.create_parameter([2, 2], "float32") for _ in range(2))
        ((_, grad),) = fluid.backward.append_backward(fluid.layers.mean(used))
        assert [param.name for param, _ in clip([(used, grad), (unused, None)])] == [used.name]


def test_groups_are_clipped_apart() -> None:
    def mark() -> None:
        for name, group in (("w1", "a"), ("b1", "a"), ("w2", "b"), ("b2", "b")):
            set_gradient_clip(GradientClipByGlobalNorm(0.1, group), [name])

    steps, grads = moved(lambda: SGD(1.0), mark)
    for group in (("w1", "b1"), ("w2", "b2")):
        size = np.sqrt(sum((grads[n] ** 2).sum() for n in group))
        for name in group:
            np.testing.assert_allclose(steps[name], grads[name] * min(1, 0.1 / size), atol=1e-6)


def test_a_group_has_one_norm() -> None:
    def mark() -> None:
        set_gradient_clip(GradientClipByGlobalNorm(0.1))
        set_gradient_clip(GradientClipByGlobalNorm(0.2), ["w1"])

    with pytest.raises(InvalidArgument, match="group"):
        moved(lambda: SGD(1.0), mark)


def test_marks_on_some_parameters_clip_none() -> None:
    steps, grads = moved(
        lambda: SGD(1.0), lambda: set_gradient_clip(GradientClipByNorm(0.1), ["w1"])
    )
    np.testing.assert_allclose(steps["w1"], grads["w1"], atol=1e-6)


def test_need_clip_chooses() -> None:
    clip = GradientClipByGlobalNorm(0.1, need_clip=lambda p: p.name == "w1")
    steps, grads = moved(lambda: SGD(1.0, grad_clip=clip))
    np.testing.assert_allclose(np.linalg.norm(steps["w1"]), 0.1, rtol=1e-5)
    np.testing.assert_allclose(steps["w2"], grads["w2"], atol=1e-6)


def test_a_mark_after_minimize_warns() -> None:
    loss = mlp()
    SGD(0.1).minimize(loss)
    with pytest.warns(UserWarning, match="before"):
        set_gradient_clip(GradientClipByValue(1.0))


def test_errors_are_clipped_on_their_way_back() -> None:
    def model() -> Any:
        x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(x, 5, param_attr="w1", bias_attr="b1")
        hidden.error_clip = ErrorClipByValue(max=0.01)
        guess = fluid.layers.fc(hidden, 1, param_attr="w2", bias_attr="b2")
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))

    clipped = Trained(lambda loss: SGD(0.1).minimize(loss), model)
    hidden = next(o for o in clipped.main.global_block().ops if o.type == "clip").input("X")[0]
    _, error, slope = clipped.step(FEED, [hidden, "w1@GRAD"])
    assert np.abs(error).max() <= 0.01 + 1e-7
    np.testing.assert_allclose(slope, FEED["x"].T @ error, rtol=1e-4, atol=1e-6)


# -- decay and rates ---------------------------------------------------------------------------
def test_decay_is_added_to_the_gradient() -> None:
    for rule, term in (
        (L2Decay(0.1), lambda p: 0.1 * p),
        (L1Decay(0.1), lambda p: 0.1 * np.sign(p)),
    ):
        optimizer = SGD(1.0, regularization=rule)
        model = Trained(optimizer.minimize)
        plain = Trained(lambda loss: SGD(1.0).minimize(loss))
        start = plain.parameters()
        model.step(FEED)
        plain.step(FEED)
        for name, value in plain.parameters().items():
            expected = value - term(start[name])
            np.testing.assert_allclose(model.value(name), expected, atol=1e-6)


def test_a_parameter_has_its_own_rate_and_decay() -> None:
    def model() -> Any:
        x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
        fast = fluid.ParamAttr("w", learning_rate=3.0, regularizer=L2Decay(0.5))
        guess = fluid.layers.fc(x, 1, param_attr=fast, bias_attr="b")
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))

    trained = Trained(lambda loss: SGD(0.1, regularization=L2Decay(9.0)).minimize(loss), model)
    start = trained.parameters()
    _, decayed = trained.step(FEED, ["w@GRAD"])
    np.testing.assert_allclose(trained.value("w"), start["w"] - 0.3 * decayed, atol=1e-6)


def test_a_variable_can_be_the_rate() -> None:
    def minimize(loss: Any) -> None:
        rate = fluid.layers.create_global_var([1], 0.25, "float32", persistable=True, name="rate")
        SGD(rate).minimize(loss)

    model = Trained(minimize)
    start = model.parameters()
    _, slope = model.step(FEED, ["w1@GRAD"])
    np.testing.assert_allclose(model.value("w1"), start["w1"] - 0.25 * slope, atol=1e-6)
    model.scope.find_var("rate").get_tensor().set(np.zeros(1, "float32"), fluid.CPUPlace())
    still = model.value("w1")
    model.step(FEED)
    np.testing.assert_array_equal(model.value("w1"), still)


# -- which parameters --------------------------------------------------------------------------
def test_only_listed_parameters_move() -> None:
    for build in (
        lambda loss: SGD(0.1, parameter_list=["w1"]).minimize(loss),
        lambda loss: SGD(0.1).minimize(loss, parameter_list=["w1"]),
        lambda loss: SGD(0.1).minimize(loss, no_grad_set={"w2", "b1", "b2"}),
    ):
        model = Trained(build)
        start = model.parameters()
        model.step(FEED)
        changed = {n for n, value in model.parameters().items() if (value != start[n]).any()}
        assert changed == {"w1"}
        assert [p.name for p, _ in model.made[1]] == ["w1"]


def test_updates_come_in_the_order_of_names() -> None:
    loss = mlp()
    ops, pairs = Momentum(0.1, 0.9).minimize(loss)
    assert [op.input("Param")[0] for op in ops] == ["b1", "b2", "w1", "w2"]
    assert {op.role for op in ops} == {2}
    assert [op.role_var for op in ops] == [(n, f"{n}@GRAD") for n in ("b1", "b2", "w1", "w2")]
    assert len(pairs) == 4


def test_a_name_goes_before_the_state() -> None:
    optimizer = Momentum(0.1, 0.9, name="slow")
    optimizer.minimize(mlp())
    assert optimizer.get_opti_var_name_list()[0] == "b1_slow_velocity_0"


def test_the_device_of_a_parameter_is_the_device_of_its_update() -> None:
    with fluid.device_guard("gpu:0"):
        loss = mlp()
    ops, _ = Adam(0.1).minimize(loss)
    assert {op.attr("op_device") for op in ops} == {"gpu:0"}


# -- noise -------------------------------------------------------------------------------------
def test_private_descent_draws_new_noise_in_every_step() -> None:
    private = Trained(lambda loss: Dpsgd(0.1, clip=1e6, batch_size=1.0, sigma=1.0).minimize(loss))
    noise = []
    for _ in range(3):
        start = private.parameters()
        _, slope = private.step(FEED, ["w1@GRAD"])
        step = (start["w1"] - private.value("w1")) / 0.1 - slope
        assert np.ptp(step) < 1e-4  # one number for all elements
        noise.append(float(step.mean()))
    assert len({round(n, 3) for n in noise}) == 3


# -- mistakes ----------------------------------------------------------------------------------
def test_lamb_leaves_out_what_it_is_told_to() -> None:
    ops, _ = Lamb(0.1, exclude_from_weight_decay_fn=lambda p: p.name == "b1").minimize(mlp())
    assert [op.attr("weight_decay") for op in ops] == [0.0, 0.01, 0.01, 0.01]


def test_minimizing_twice_with_state_is_refused() -> None:
    optimizer, loss = Momentum(0.1, 0.9), mlp()
    optimizer.minimize(loss)
    with pytest.raises(InvalidArgument, match="already updates"):
        optimizer.minimize(loss)


def test_a_schedule_of_another_program_is_refused() -> None:
    rate = fluid.layers.exponential_decay(0.1, 10, 0.5)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        loss = mlp()
        with pytest.raises(InvalidArgument, match="another program"):
            SGD(rate).minimize(loss)


def test_a_sparse_gradient_needs_an_optimizer_with_a_form_for_it() -> None:
    ids = fluid.layers.data("ids", [1], dtype="int64")
    rows = fluid.layers.embedding(ids, [9, 2], is_sparse=True, param_attr="words")
    with pytest.raises(
        UnsupportedError, match="optimizer 'adamax' has no form for sparse gradients"
    ):
        fluid.optimizer.Adamax(0.1).minimize(fluid.layers.mean(rows))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SGD("fast"),
        lambda: SGD(0.1, grad_clip=1.0),
        lambda: SGD(0.1).minimize("loss"),
        lambda: set_gradient_clip(1.0),  # the mistake under test
        lambda: GradientClipByNorm(1.0, need_clip=3),
    ],
)
def test_wrong_arguments_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


@pytest.mark.parametrize("ids", [[[-1]], [[9]]])
def test_an_id_outside_the_table_is_named(ids: Any) -> None:
    def model() -> Any:
        data = fluid.layers.data("ids", [1], dtype="int64")
        return fluid.layers.mean(fluid.layers.embedding(data, [9, 2]))

    trained = Trained(lambda loss: SGD(0.1).minimize(loss), model)
    with warnings.catch_warnings(), pytest.raises(Exception, match="not in a table of 9 rows"):
        trained.step({"ids": np.array(ids)})


@pytest.mark.parametrize("sparse", [False, True])
def test_padding_reads_as_zeros_and_learns_nothing(sparse: bool) -> None:
    def model() -> Any:
        data = fluid.layers.data("ids", [1], dtype="int64")
        rows = fluid.layers.embedding(
            data, [9, 2], is_sparse=sparse, padding_idx=-1, param_attr="table"
        )
        return fluid.layers.mean(rows)

    trained = Trained(lambda loss: SGD(0.1).minimize(loss), model)
    start = trained.value("table")
    (loss,) = trained.step({"ids": np.array([[3], [8], [3]])})
    np.testing.assert_allclose(loss[0], start[3].sum() * 2 / 6, rtol=1e-5)
    changed = np.flatnonzero((trained.value("table") != start).any(axis=1))
    assert changed.tolist() == [3]
