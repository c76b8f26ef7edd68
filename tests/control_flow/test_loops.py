"""Loops: what they compute, what they carry, and gradients through every way of carrying it.

Operators reached here: while, while_grad, write_to_array, read_from_array, lod_array_length,
tensor_array_to_tensor, tensor_array_to_tensor_grad.
"""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.errors import BiremeError, FeedError, InvalidArgument

from .slopes import Trial, lod, wave


def _input(*shape: Any) -> Any:
    x = fluid.data("x", list(shape))
    x.stop_gradient = False
    return x


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def _run(*fetch: Any) -> list[Any]:
    executor = fluid.Executor(fluid.CPUPlace())
    found: list[Any] = executor.run(fetch[0].block.program, None, list(fetch), scope=fluid.Scope())
    return found


def _powers(times: int) -> Any:
    """tanh(... tanh(x w) w ...), `times` deep, with the state in a variable."""
    x = _input(3, 4)
    weight = layers.create_parameter([4, 4], "float32", name="w")
    i, n = (layers.fill_constant([1], "int64", v) for v in (0, times))
    start = layers.scale(x, 1.0)
    _, y = layers.while_loop(
        lambda i, y: layers.less_than(i, n),
        lambda i, y: [layers.increment(i), layers.tanh(layers.matmul(y, weight))],
        [i, start],
    )
    return layers.reduce_sum(layers.square(y))


@pytest.mark.parametrize("times", [1, 3])
def test_gradients_flow_through_a_variable_that_a_loop_carries(times: int) -> None:
    Trial(lambda: _powers(times), {"x": wave(3, 4)}).check()


def test_a_loop_that_never_runs_passes_the_gradient_on() -> None:
    trial = Trial(lambda: _powers(0), {"x": wave(3, 4)})
    x, w = trial.run("x@GRAD", "w@GRAD")
    np.testing.assert_allclose(x, 2 * wave(3, 4))
    assert not w.any()


def _unrolled() -> Any:
    """The state in an array, as scripts for Fluid write it."""
    x = _input(3, 4)
    weight = layers.create_parameter([4, 4], "float32", name="w")
    i = layers.zeros([1], "int64")
    i.stop_gradient = True
    n = layers.fill_constant([1], "int64", 3)
    states = layers.array_write(x, i)
    going = layers.less_than(i, n)
    with layers.While(going).block():
        new = layers.tanh(layers.matmul(layers.array_read(states, i), weight))
        i = layers.increment(i, in_place=True)
        layers.array_write(new, i, states)
        layers.less_than(i, n, cond=going)
    return layers.mean(layers.square(layers.array_read(states, n)))


def test_gradients_flow_through_arrays() -> None:
    Trial(_unrolled, {"x": wave(3, 4)}).check()


def test_a_loop_builds_the_recorded_program() -> None:
    trial = Trial(_unrolled, {"x": wave(3, 4)})
    assert trial.ops(1) == (
        "read_from_array matmul tanh increment write_to_array less_than".split()
    )
    assert trial.ops(2) == (
        "read_from_array increment tanh_grad matmul_grad write_to_array".split()
    )
    assert trial.ops()[-2:] == ["while_grad", "read_from_array"]
    back = trial.main.global_block().ops[-2]
    assert set(back.output("X@GRAD")) == {"array_write_0.out@GRAD", "w@GRAD", "@EMPTY@"}
    assert back.attr("original_output_grad") == ["array_write_0.out@GRAD"]


def test_an_inner_loop_has_gradients_too() -> None:
    def build() -> Any:
        x = _input(2, 3)
        weight = layers.create_parameter([3, 3], "float32", name="w")
        two = layers.fill_constant([1], "int64", 2)
        i = layers.fill_constant([1], "int64", 0)

        def inner(i: Any, y: Any) -> Any:
            j = layers.fill_constant([1], "int64", 0)
            y = layers.scale(y, 1.0)
            _, y = layers.while_loop(
                lambda j, y: layers.less_than(j, two),
                lambda j, y: [layers.increment(j), layers.tanh(layers.matmul(y, weight))],
                [j, y],
            )
            return [layers.increment(i), layers.scale(y, 1.5)]

        _, y = layers.while_loop(
            lambda i, y: layers.less_than(i, two), inner, [i, layers.scale(x, 1.0)]
        )
        return layers.mean(layers.square(y))

    Trial(build, {"x": wave(2, 3)}).check()


def test_a_branch_inside_a_loop_has_gradients() -> None:
    def build() -> Any:
        x = _input(2, 3)
        one, three = (layers.fill_constant([1], "int64", v) for v in (1, 3))
        i = layers.fill_constant([1], "int64", 0)

        def body(i: Any, y: Any) -> Any:
            new = layers.cond(
                layers.less_than(i, one),
                lambda: layers.tanh(layers.fc(y, 3, param_attr="a", bias_attr=False)),
                lambda: layers.fc(y, 3, param_attr="b", bias_attr=False),
            )
            return [layers.increment(i), new]

        _, y = layers.while_loop(
            lambda i, y: layers.less_than(i, three), body, [i, layers.scale(x, 1.0)]
        )
        return layers.mean(layers.square(y))

    Trial(build, {"x": wave(2, 3)}).check()


def test_arrays_know_their_length_and_join() -> None:
    first, second = (layers.fill_constant([1, 2], "float32", v) for v in (1.0, 2.0))
    zero, one = (layers.fill_constant([1], "int64", v) for v in (0, 1))
    array = layers.array_write(second, one, layers.array_write(first, zero))
    joined, sizes = layers.tensor_array_to_tensor(array, axis=0)
    length, values, counts = _run(layers.array_length(array), joined, sizes)
    assert length == 2
    assert values.tolist() == [[1, 1], [2, 2]]
    assert counts.tolist() == [1, 1]


@pytest.mark.parametrize("stacked", [False, True])
def test_joined_arrays_have_gradients(stacked: bool) -> None:
    def build() -> Any:
        x = _input(2, 3)
        at = [layers.fill_constant([1], "int64", v) for v in (0, 1)]
        array = layers.array_write(layers.square(x), at[0])
        layers.array_write(layers.tanh(x), at[1], array)
        joined, _ = layers.tensor_array_to_tensor(array, axis=1, use_stack=stacked)
        return layers.mean(layers.square(joined))

    Trial(build, {"x": wave(2, 3)}).check()


def test_reading_what_was_never_written_names_the_array() -> None:
    array = layers.create_array("float32")
    zero = layers.fill_constant([1], "int64", 0)
    with pytest.raises(BiremeError, match=r"array_0\.out"):
        _run(layers.array_read(array, zero))


def test_the_condition_of_a_loop_must_be_boolean() -> None:
    with pytest.raises(InvalidArgument, match="must be one of bool"):
        layers.While(layers.fill_constant([1], "int64", 1))


def test_loop_variables_may_stand_in_lists_and_dicts_that_the_body_changes() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        i, n = layers.zeros([1], "int64"), layers.fill_constant([1], "int64", 3)
        named = {"last": layers.fill_constant([1], "int64", 0)}
        listed = [layers.fill_constant([1, 2], "int64", 0)]

        def body(i: Any, named: Any, listed: Any) -> Any:
            named["last"] = i
            listed[0] = layers.reshape(i, [1, 1]) + listed[0]
            return [layers.increment(i), named, listed]

        i, named, listed = layers.while_loop(
            lambda i, named, listed: layers.less_than(i, n), body, [i, named, listed]
        )
    last, total = fluid.Executor().run(main, fetch_list=[named["last"], listed[0]])
    assert (last.tolist(), total.tolist()) == ([3], [[3, 3]])


def test_a_variable_that_a_body_increments_in_place_has_its_gradient() -> None:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        i, x = fluid.data("i", [1]), fluid.data("x", [1])
        i.stop_gradient = x.stop_gradient = False
        n = layers.fill_constant([1], "float32", 11)
        _, out = layers.while_loop(
            lambda i, x: layers.less_than(i, n), lambda i, x: [layers.increment(i), i * i], [i, x]
        )
        fluid.append_backward(layers.mean(out))
    one = np.ones(1, "float32")
    value, slope = fluid.Executor().run(main, {"i": one, "x": one}, [out, "i@GRAD"])
    assert (value[0], slope[0]) == (121.0, 22.0)


def test_an_array_of_sequences_is_fetched_as_lod_tensors_only() -> None:
    x = fluid.data("x", [None, 2], lod_level=1)
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    executor, feed = fluid.Executor(fluid.CPUPlace()), {"x": lod(wave(3, 2), [1, 2])}
    (found,) = executor.run(feed=feed, fetch_list=[array], return_numpy=False)
    assert found[0].lod() == [[0, 1, 3]]
    with pytest.raises(FeedError, match="return_numpy=False"):
        executor.run(feed=feed, fetch_list=[array])
