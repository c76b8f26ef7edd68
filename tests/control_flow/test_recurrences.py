"""Recurrences: equal lengths and sequences, memories that start anywhere, inputs that stay.

Operators reached here: recurrent, recurrent_grad, rnn_memory_helper, rnn_memory_helper_grad,
lod_rank_table, max_sequence_len, lod_tensor_to_array, array_to_lod_tensor, shrink_rnn_memory,
shrink_rnn_memory_grad, reorder_lod_tensor_by_rank, reorder_lod_tensor_by_rank_grad,
conditional_block_infer.
"""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.errors import BiremeError, InvalidArgument

from .slopes import Trial, lod, wave


def _input(name: str, *shape: Any, level: int = 0) -> Any:
    x = fluid.data(name, list(shape), lod_level=level)
    x.stop_gradient = False
    return x


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        yield


def _static() -> Any:
    x = _input("x", 3, 2, 4)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        state = rnn.memory(shape=[-1, 5], batch_ref=word)
        new = layers.fc([word, state], 5, act="tanh")
        rnn.update_memory(state, new)
        rnn.step_output(new)
    return layers.mean(layers.square(rnn()))


def test_a_static_rnn_has_gradients() -> None:
    trial = Trial(_static, {"x": wave(3, 2, 4)})
    trial.check()
    assert trial.ops(1)[-2:] == ["rnn_memory_helper"] * 2
    assert trial.ops(2)[:3] == ["rnn_memory_helper_grad", "rnn_memory_helper_grad", "sum"]


def test_a_static_rnn_agrees_with_its_loop() -> None:
    trial = Trial(_static, {"x": wave(3, 2, 4)})
    (loss,) = trial.run(trial.loss.name)
    h, total = np.zeros((2, 5)), 0.0
    for x in wave(3, 2, 4):
        h = np.tanh(x @ wave(4, 5) + h @ wave(5, 5) + wave(5))
        total += float((h * h).sum())
    assert float(loss[0]) == pytest.approx(total / 30, rel=1e-5)


def _eight_cells() -> Any:
    hidden, _ = layers.dynamic_lstm(_input("x", None, 32, level=1), 32)
    return layers.mean(layers.square(hidden))


def test_a_dynamic_lstm_of_eight_cells_has_gradients() -> None:
    """The original has a kernel of its own for such sizes, with wrong gradients."""
    Trial(_eight_cells, {"x": lod(4 * wave(3, 32), [1, 2])}).check()


def test_a_memory_may_start_from_a_variable() -> None:
    def build() -> Any:
        x, init = _input("x", 3, 2, 4), _input("init", 2, 4)
        rnn = layers.StaticRNN()
        with rnn.step():
            word = rnn.step_input(x)
            state = rnn.memory(init=init)
            new = layers.tanh(word + state)
            rnn.update_memory(state, new)
            rnn.output(new, layers.square(new))
        first, second = rnn()
        return layers.mean(first * second)

    Trial(build, {"x": wave(3, 2, 4), "init": wave(2, 4)}).check()


def _dynamic(order: bool = False) -> Any:
    x, y = _input("x", -1, 4, level=1), _input("y", -1, 3)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(x)
        kept = rnn.static_input(y)
        state = rnn.memory(init=y, need_reorder=True) if order else rnn.memory(shape=[3])
        new = layers.fc([word, state, kept], 3, act="tanh")
        rnn.update_memory(state, new)
        rnn.output(new)
    return layers.mean(layers.square(rnn()))


@pytest.mark.parametrize("order", [False, True])
def test_a_dynamic_rnn_has_gradients(order: bool) -> None:
    feed = {"x": lod(wave(6, 4), [2, 3, 1]), "y": wave(3, 3)}
    Trial(lambda: _dynamic(order), feed).check()


def test_a_dynamic_rnn_refuses_more_rows_than_sequences() -> None:
    trial = Trial(_dynamic, {"x": lod(wave(6, 4), [2, 3, 1]), "y": wave(5, 3)})
    with pytest.raises(BiremeError, match=r"X has 5 sequences .* orders them 3"):
        trial.run(trial.loss.name)


def test_a_dynamic_rnn_agrees_with_a_loop_over_its_sequences() -> None:
    trial = Trial(lambda: _dynamic(order=True), {"x": lod(wave(6, 4), [2, 3, 1]), "y": wave(3, 3)})
    (loss,) = trial.run(trial.loss.name)
    total, rows = 0.0, np.split(wave(6, 4), [2, 5])
    for start, sequence in zip(wave(3, 3), rows, strict=True):
        h = start
        for x in sequence:
            h = np.tanh(x @ wave(4, 3) + h @ wave(3, 3) + start @ wave(3, 3) + wave(3))
            total += float((h * h).sum())
    assert float(loss[0]) == pytest.approx(total / 18, rel=1e-5)


def test_a_dynamic_rnn_builds_the_recorded_program() -> None:
    def build() -> Any:
        x = _input("x", -1, 4, level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(x)
            state = rnn.memory(shape=[5])
            new = layers.fc([word, state], 5, act="tanh")
            rnn.update_memory(state, new)
            rnn.output(new)
        return layers.mean(layers.sequence_last_step(rnn()))

    trial = Trial(build, {"x": lod(wave(6, 4), [2, 3, 1])})
    assert (
        trial.ops()
        == (
            "fill_constant lod_rank_table max_sequence_len less_than lod_tensor_to_array "
            "fill_constant read_from_array fill_constant_batch_size_like write_to_array while "
            "array_to_lod_tensor sequence_pool mean fill_constant mean_grad sequence_pool_grad "
            "lod_tensor_to_array while_grad read_from_array array_to_lod_tensor"
        ).split()
    )
    assert (
        trial.ops(2)
        == (
            "read_from_array increment read_from_array sum tanh_grad elementwise_add_grad scale "
            "scale mul_grad mul_grad shrink_rnn_memory_grad write_to_array write_to_array"
        ).split()
    )
    loop = trial.main.global_block().ops[9]
    assert loop.output("Out") == [
        "dynamic_rnn_0.tmp_0",
        "dynamic_rnn_0_output_array_fc_0.tmp_4_0",
        "fill_constant_0.tmp_0",
        "dynamic_rnn_mem_array_0",
    ]


def test_sequences_come_back_in_their_places() -> None:
    x = _input("x", -1, 2, level=1)
    table = layers.lod_rank_table(x)
    back = layers.array_to_lod_tensor(layers.lod_tensor_to_array(x, table), table)
    ranked = layers.reorder_lod_tensor_by_rank(x, table)
    given = lod(wave(6, 2), [1, 3, 0, 2])
    executor = fluid.Executor(fluid.CPUPlace())
    fetch = [back, ranked, layers.max_sequence_len(table)]
    found = executor.run(
        x.block.program, {"x": given}, fetch, scope=fluid.Scope(), return_numpy=False
    )
    np.testing.assert_array_equal(np.asarray(found[0]), given.array)
    assert found[0].recursive_sequence_lengths() == [[1, 3, 0, 2]]
    assert found[1].recursive_sequence_lengths() == [[3, 2, 1, 0]]
    np.testing.assert_array_equal(np.asarray(found[1])[:3], given.array[1:4])
    assert np.asarray(found[2]).tolist() == [3]


def test_a_conditional_block_for_inference_runs_its_branch() -> None:
    program = fluid.default_main_program()
    yes = layers.fill_constant([1], "bool", 1.0)
    out = layers.cond(
        yes, lambda: layers.fill_constant([1], "float32", 4.0), lambda: layers.cast(yes, "float32")
    )
    block = program.global_block()
    for index, op in enumerate(block.ops):
        if op.type == "conditional_block":
            block.put(index, op.replaced(type="conditional_block_infer"))
    found = fluid.Executor(fluid.CPUPlace()).run(program, None, [out], scope=fluid.Scope())
    assert found[0] == 4.0


def test_a_memory_that_is_never_updated_is_refused() -> None:
    x = _input("x", 3, 2, 4)
    rnn = layers.StaticRNN()
    with pytest.raises(InvalidArgument, match="never updated"), rnn.step():
        rnn.memory(init=rnn.step_input(x))


def test_a_dynamic_rnn_without_input_is_refused() -> None:
    rnn = layers.DynamicRNN()
    with pytest.raises(InvalidArgument, match="step_input"), rnn.block():
        rnn.memory(shape=[3])


def test_a_batch_leaves_nothing_for_the_gradients_of_the_next() -> None:
    def build() -> Any:
        x, init = _input("x", -1, 4, level=1), _input("init", -1, 8)
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(x)
            state = rnn.memory(init=init)
            new = layers.fc([word, state], 8, act="tanh")
            rnn.update_memory(state, new)
            rnn.output(new)
        return layers.mean(layers.square(rnn()))

    def feed(*lengths: int) -> dict[str, Any]:
        rows = sum(lengths)
        return {"x": lod(wave(rows, 4), [*lengths]), "init": wave(len(lengths), 8)}

    trial = Trial(build, feed(2))
    names = [f"{p.name}@GRAD" for p in trial.main.all_parameters()]
    fresh = trial.run(*names)
    for other in (feed(3), feed(5, 1, 2), feed(2)):
        trial.feed = other
        trial.check()
    for grad, first in zip(trial.run(*names), fresh, strict=True):
        np.testing.assert_array_equal(grad, first)


def test_an_array_that_a_program_writes_lives_for_one_run() -> None:
    at, more = fluid.data("at", [1], "int64"), fluid.data("more", [1], "bool")
    array = layers.create_array("float32")
    with layers.Switch() as switch, switch.case(more):
        layers.array_write(layers.fill_constant([1], "float32", 1.0), at, array)
    length = layers.array_length(array)
    executor, found = fluid.Executor(), []
    for index, write in ((4, True), (1, True), (0, False)):
        feed = {"at": np.array([index]), "more": np.array([write])}
        found.append(int(executor.run(feed=feed, fetch_list=[length])[0][0]))
    assert found == [5, 2, 0]
