"""Branches: which side computes, what it may write, and the gradients of both sides.

Operators reached here: conditional_block, conditional_block_grad, select_input, select_output.
"""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.errors import InvalidArgument

from .slopes import Trial, wave


def _input(*shape: Any) -> Any:
    x = fluid.data("x", list(shape))
    x.stop_gradient = False
    return x


def _run(*fetch: Any, feed: Any = None) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    found: list[Any] = executor.run(fetch[0].block.program, feed, list(fetch), scope=fluid.Scope())
    return found


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


@pytest.mark.parametrize("limit", [-100.0, 100.0])
def test_gradients_flow_through_the_branch_that_was_taken(limit: float) -> None:
    def build() -> Any:
        x = _input(3, 4)
        h = layers.fc(x, 3)
        small = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", limit))
        out = layers.cond(
            small, lambda: layers.fc(h, 2) * 2.0, lambda: layers.square(layers.fc(h, 2))
        )
        return layers.mean(out)

    Trial(build, {"x": wave(3, 4)}).check()


def test_cond_builds_the_recorded_program() -> None:
    def build() -> Any:
        x = _input(-1, 4)
        limit = layers.fill_constant([1], "float32", 0.0)
        small = layers.less_than(layers.reduce_sum(x), limit)
        return layers.mean(layers.cond(small, lambda: x * 2.0, lambda: layers.square(x)))

    trial = Trial(build, {"x": wave(2, 4)})
    assert (
        trial.ops()
        == (
            "fill_constant reduce_sum less_than conditional_block logical_not conditional_block "
            "cast select_input mean fill_constant mean_grad select_output conditional_block_grad "
            "conditional_block_grad sum"
        ).split()
    )
    program = trial.main
    assert [b.parent_idx for b in program.blocks] == [-1, 0, 0, 0, 0]
    assert [b.forward_block_idx for b in program.blocks] == [-1, -1, -1, 2, 1]
    assert trial.ops(1) == ["scale", "assign"]
    assert trial.ops(4) == ["assign", "scale"]
    assert program.global_block().ops[7].input("X") == ["_generated_var_2", "_generated_var_0"]


def test_an_inner_branch_has_gradients_too() -> None:
    def build() -> Any:
        x = _input(2, 3)
        total = layers.reduce_sum(x)
        zero = layers.fill_constant([1], "float32", 0.0)
        ten = layers.fill_constant([1], "float32", 10.0)

        def inner() -> Any:
            return layers.cond(
                layers.less_than(total, ten),
                lambda: layers.tanh(layers.fc(x, 2)),
                lambda: layers.fc(x, 2),
            )

        return layers.mean(
            layers.cond(layers.greater_than(total, zero), inner, lambda: layers.fc(x, 2))
        )

    Trial(build, {"x": np.abs(wave(2, 3))}).check()


def test_case_takes_the_first_true_predicate() -> None:
    small, large = (layers.fill_constant([1], "float32", v) for v in (1.0, 2.0))
    pairs = [
        (layers.less_than(large, small), lambda: layers.fill_constant([1], "float32", 10.0)),
        (layers.less_than(small, large), lambda: layers.fill_constant([1], "float32", 20.0)),
    ]
    assert _run(layers.case(pairs))[0] == 20.0


@pytest.mark.parametrize(("index", "wanted"), [(1, 10.0), (3, 30.0), (7, 30.0)])
def test_switch_case_takes_the_branch_of_its_index(index: int, wanted: float) -> None:
    number = layers.fill_constant([1], "int32", index)
    branches = {k: lambda k=k: layers.fill_constant([1], "float32", 10.0 * k) for k in (1, 2, 3)}
    assert _run(layers.switch_case(number, branches))[0] == wanted


@pytest.mark.parametrize(("step", "wanted"), [(1.0, 0.1), (5.0, 0.2), (9.0, 0.3)])
def test_a_switch_runs_one_case(step: float, wanted: float) -> None:
    at = layers.fill_constant([1], "float32", step)
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True, name="rate")
    values = [layers.fill_constant([1], "float32", v) for v in (0.1, 0.2, 0.3)]
    with layers.Switch() as switch:
        with switch.case(layers.less_than(at, layers.fill_constant([1], "float32", 3.0))):
            layers.assign(values[0], rate)
        with switch.case(layers.less_than(at, layers.fill_constant([1], "float32", 6.0))):
            layers.assign(values[1], rate)
        with switch.default():
            layers.assign(values[2], rate)
    assert _run(rate)[0] == np.float32(wanted)


@pytest.mark.parametrize("labels", [[1, 7, 2, 8], [1, 2, 3, 4], [7, 8, 9, 6]])
def test_if_else_sends_each_row_through_its_block(labels: list[int]) -> None:
    def build() -> Any:
        x, label = _input(-1, 4), fluid.data("label", [-1, 1], "int64")
        small = layers.less_than(label, layers.fill_constant([1], "int64", 5))
        either = layers.IfElse(small)
        with either.true_block():
            either.output(layers.fc(either.input(x), 3))
        with either.false_block():
            either.output(layers.tanh(layers.fc(either.input(x), 3)))
        return layers.mean(layers.square(either()[0]))

    trial = Trial(build, {"x": wave(4, 4), "label": np.array(labels).reshape(4, 1)})
    trial.check()


def test_branches_that_return_different_structures_are_refused() -> None:
    x = _input(2, 3)
    yes = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 0.0))
    with pytest.raises(InvalidArgument, match="different structures"):
        layers.cond(yes, lambda: [x, x], lambda: x)
    with pytest.raises(InvalidArgument, match="returns None"):
        layers.cond(yes, lambda: x, lambda: None)


def test_a_case_outside_of_its_switch_is_refused() -> None:
    switch = layers.Switch()
    yes = layers.fill_constant([1], "bool", 1.0)
    with pytest.raises(InvalidArgument, match="outside of its Switch"), switch.case(yes):
        pass


def test_what_a_block_runs_for_has_its_gradient() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 8])
        x.stop_gradient = False
        out = fluid.layers.create_tensor("float32")
        block = fluid.layers.ConditionalBlock(inputs=[x])
        with block.block():
            fluid.layers.assign(fluid.layers.square(x), out)
        fluid.append_backward(fluid.layers.mean(out))
    rows = np.arange(16, dtype="float32").reshape(2, 8)
    (grad,) = fluid.Executor().run(main, {"x": rows}, ["x@GRAD"])
    np.testing.assert_allclose(grad, rows / 8)
