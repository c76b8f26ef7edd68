"""Replicas on threads change parameters as the whole batch does."""

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.values import LoDTensorArray, create_lod_tensor
from bireme.autodiff.backward import append_backward
from bireme.errors import FeedError, InvalidArgument, UnsupportedError
from bireme.passes.strategies import BuildStrategy, ExecutionStrategy
from bireme.runtime import compiled_program
from bireme.runtime.compiled_program import CompiledProgram
from bireme.runtime.executor import Executor
from bireme.runtime.parallel_executor import ParallelExecutor
from bireme.runtime.scope import Scope, scope_guard

from .programs import PLACE, Builder, put, value


def regression(learns_inputs=False):
    """loss = mean((x w - y)^2) with its gradient, and a step of descent."""
    b = Builder()
    x, y = b.data("x", [-1, 3]), b.data("y", [-1, 1])
    x.stop_gradient = not learns_inputs
    w, rate = (
        b.block.create_parameter(name="w", shape=[3, 1], dtype="float32"),
        b.lasting("rate", [1]),
    )
    d = b.op("elementwise_sub", "d", X=b.op("mul", "p", X=x, Y=w), Y=y)
    b.op("mean", "loss", X=b.op("square", "s", X=d))
    pairs = append_backward(b.block.var("loss"), parameter_list=["w"])
    with b.program._optimized_guard(["w"]):
        b.op("sgd", "w", "ParamOut", Param=w, Grad=pairs[0][1], LearningRate=rate)
    return b


def trained(program, feeds, fetches=("loss",), **kwargs):
    scope = Scope()
    put(scope, w=np.ones((3, 1)), rate=[0.1])
    with Executor(PLACE) as exe:
        results = [exe.run(program, f, list(fetches), scope=scope, **kwargs) for f in feeds]
    return value(scope, "w"), results


def batches(rows, count=4):
    rng = np.random.default_rng(0)
    for _ in range(count):
        x = rng.normal(size=(rows, 3)).astype("float32")
        yield {"x": x, "y": x @ np.array([[1], [2], [3]], "float32")}


@pytest.mark.parametrize(("replicas", "rows"), [(1, 8), (2, 8), (4, 8)])
def test_replicas_train_as_the_whole_batch_does(replicas, rows, monkeypatch):
    monkeypatch.setenv("CPU_NUM", str(replicas))
    b = regression()
    whole, losses = trained(b.program, batches(rows))
    compiled = CompiledProgram(b.program).with_data_parallel(loss_name="loss")
    parts, merged = trained(compiled, batches(rows))
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    assert merged[0][0].shape == (replicas,)
    means = [np.mean(result[0]) for result in merged]
    np.testing.assert_allclose(means, [loss[0][0] for loss in losses], rtol=1e-5)


def mean_descent(feed, replicas):
    """The weights after a step along the mean of the parts' gradients, as Fluid takes it."""
    w = np.ones((3, 1), "float32")
    slopes = []
    for x, y in zip(*(np.array_split(feed[k], replicas) for k in "xy"), strict=True):
        slopes.append(2 * x.T @ (x @ w - y) / len(x))
    return w - 0.1 * np.mean(slopes, axis=0)


@pytest.mark.parametrize(("replicas", "rows"), [(2, 8), (3, 8), (2, 3)])
def test_every_replica_counts_alike(replicas, rows):
    (feed,) = batches(rows, 1)
    compiled = CompiledProgram(regression().program).with_data_parallel(places=[PLACE] * replicas)
    found, _ = trained(compiled, [feed])
    np.testing.assert_allclose(found, mean_descent(feed, replicas), rtol=1e-5)


def test_replicas_count_alike_however_long_their_sequences_are():
    b = Builder()
    x, y = b.data("x", [-1, 3], lod_level=1), b.data("y", [-1, 1])
    w = b.block.create_parameter(name="w", shape=[3, 1], dtype="float32")
    rate = b.lasting("rate", [1])
    pooled = b.op("sequence_pool", "pool", X=x, pooltype="SUM")
    d = b.op("elementwise_sub", "d", X=b.op("mul", "p", X=pooled, Y=w), Y=y)
    b.op("mean", "loss", X=b.op("square", "s", X=d))
    pairs = append_backward(b.block.var("loss"), parameter_list=["w"])
    with b.program._optimized_guard(["w"]):
        b.op("sgd", "w", "ParamOut", Param=w, Grad=pairs[0][1], LearningRate=rate)
    rows = np.random.default_rng(1).normal(size=(8, 3)).astype("float32")
    sequences = create_lod_tensor(rows, [[1, 1, 4, 2]], PLACE)
    feed = {"x": sequences, "y": np.ones((4, 1), "float32")}
    compiled = CompiledProgram(b.program).with_data_parallel(places=[PLACE] * 2)
    np.testing.assert_allclose(
        trained(compiled, [feed])[0], trained(b.program, [feed])[0], rtol=1e-5
    )


def test_replicas_repeat_bit_for_bit(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "3")
    runs = set()
    for _ in range(5):
        compiled = CompiledProgram(regression().program).with_data_parallel(loss_name="loss")
        runs.add(trained(compiled, batches(9))[0].tobytes())
    assert len(runs) == 1


def test_a_list_of_feeds_gives_each_replica_its_own(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    b = regression()
    (feed,) = batches(4, 1)
    halves = [{k: v[:2] for k, v in feed.items()}, {k: v[2:] for k, v in feed.items()}]
    compiled = CompiledProgram(b.program).with_data_parallel()
    together, results = trained(compiled, [halves], ("loss", "p"), return_merged=False)
    np.testing.assert_allclose(together, trained(b.program, [feed])[0], rtol=1e-6)
    assert [len(values) for values in results[0]] == [2, 2]
    assert results[0][1][0].shape == (2, 1)
    with pytest.raises(FeedError, match="3 feeds for 2 replicas"):
        trained(compiled, [[feed] * 3])


@pytest.mark.parametrize("rows", [1, 3])
def test_too_small_a_batch_leaves_replicas_idle(rows, monkeypatch):
    monkeypatch.setenv("CPU_NUM", "4")
    compiled = CompiledProgram(regression().program).with_data_parallel()
    parts, results = trained(compiled, batches(rows))
    np.testing.assert_allclose(parts, trained(regression().program, batches(rows))[0], rtol=1e-5)
    assert results[0][0].shape == (rows,)


def test_fewer_feeds_than_replicas_leave_the_others_idle():
    b = regression()
    (feed,) = batches(4, 1)
    compiled = CompiledProgram(b.program).with_data_parallel(places=[PLACE] * 4)
    parts, results = trained(compiled, [[feed]], ("loss", "p"))
    np.testing.assert_allclose(parts, trained(b.program, [feed])[0], rtol=1e-6)
    assert results[0][1].shape == (4, 1)


def test_one_place_is_one_replica():
    b = regression()
    (feed,) = batches(4, 1)
    compiled = CompiledProgram(b.program).with_data_parallel(places=PLACE)
    assert np.array_equal(trained(compiled, [feed])[0], trained(b.program, [feed])[0])


@pytest.mark.parametrize(("replicas", "rows"), [(2, 8), (3, 9)])
def test_fetched_gradients_are_those_of_the_whole_batch(replicas, rows):
    """Those of parameters are summed, as an update sees them; those of the batch are its rows'."""
    b = regression(learns_inputs=True)
    (feed,) = batches(rows, 1)
    names = ("x@GRAD", "p@GRAD", "w@GRAD")
    _, ((x, p, w),) = trained(b.program, [feed], names)
    compiled = CompiledProgram(b.program).with_data_parallel(places=[PLACE] * replicas)
    _, ((xs, ps, ws),) = trained(compiled, [feed], names)
    np.testing.assert_allclose(xs, x, rtol=1e-5)
    np.testing.assert_allclose(ps, p, rtol=1e-5)
    np.testing.assert_allclose(ws, np.concatenate([w] * replicas), rtol=1e-5)
    scales = BuildStrategy.GradientScaleStrategy
    strategy = BuildStrategy()
    strategy.gradient_scale_strategy = scales.One
    compiled = CompiledProgram(b.program).with_data_parallel(
        build_strategy=strategy, places=[PLACE] * replicas
    )
    _, ((xs, _, _),) = trained(compiled, [feed], names)
    assert np.abs(xs).sum() > np.abs(x).sum() * 1.5


def test_sequences_are_shared_out_whole(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    b = Builder()
    b.op("scale", "y", X=b.data("x", [-1, 1], lod_level=1), scale=2.0)
    compiled = CompiledProgram(b.program).with_data_parallel()
    x = create_lod_tensor(np.arange(6, dtype="float32").reshape(6, 1), [[1, 2, 3]], PLACE)
    with Executor(PLACE) as exe:
        (y,) = exe.run(compiled, {"x": x}, ["y"], scope=Scope(), return_numpy=False)
    assert y.recursive_sequence_lengths() == [[1, 2, 3]]
    assert np.array(y).reshape(-1).tolist() == [0, 2, 4, 6, 8, 10]


def test_without_data_parallel_it_runs_the_program(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    b = regression()
    whole, _ = trained(b.program, batches(8))
    assert np.array_equal(trained(CompiledProgram(b.program), batches(8))[0], whole)


def test_parallel_executor_trains_too(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    b = regression()
    scope = Scope()
    put(scope, w=np.ones((3, 1)), rate=[0.1])
    with scope_guard(scope):
        exe = ParallelExecutor(use_cuda=False, loss_name="loss", main_program=b.program)
        assert exe.device_count == 2
        for feed in batches(8):
            (loss,) = exe.run(["loss"], feed=feed)
        exe.drop_local_exe_scopes()
        exe.close()
    assert loss.shape == (2,)
    np.testing.assert_allclose(value(scope, "w"), trained(b.program, batches(8))[0], rtol=1e-5)


def test_an_iteration_count_repeats_the_run():
    b = regression()
    strategy = ExecutionStrategy()
    strategy.num_iteration_per_run = 3
    compiled = CompiledProgram(b.program).with_data_parallel(exec_strategy=strategy)
    (feed,) = batches(8, 1)
    assert np.array_equal(trained(compiled, [feed])[0], trained(b.program, [feed] * 3)[0])


def test_strategies_have_fluids_fields_and_ignore_others():
    build, execution = BuildStrategy(), ExecutionStrategy()
    build.fuse_all_reduce_ops = False
    build.reduce_strategy = BuildStrategy.ReduceStrategy.Reduce
    build.trainers_endpoints = ["127.0.0.1:1"]
    execution.num_threads = 2
    assert repr(execution) == "ExecutionStrategy(num_threads=2)"
    assert BuildStrategy().trainers_endpoints == []
    with pytest.warns(UserWarning, match="did you mean fuse_all_reduce_ops"):
        build.fuse_all_reduce_op = True
    with pytest.warns(UserWarning, match="not a int"):
        execution.num_threads = "four"
    assert execution.num_threads == 2
    build.fuse_all_reduce_op = True  # said once


def test_replicas_inside_a_collective_trainer_are_refused(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "2")
    b = regression()
    b.program._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    compiled = CompiledProgram(b.program).with_data_parallel()
    with pytest.raises(UnsupportedError, match="CPU_NUM=1"):
        trained(compiled, batches(8))


def test_mistakes_get_clear_messages():
    b = regression()
    with pytest.raises(InvalidArgument, match="loss 'lost' is not a variable"):
        CompiledProgram(b.program).with_data_parallel(loss_name="lost")
    with pytest.raises(InvalidArgument, match="takes a Program"):
        CompiledProgram("main")
    compiled = CompiledProgram(b.program).with_data_parallel()
    with pytest.raises(UnsupportedError, match="twice"):
        compiled.with_data_parallel()
    with Executor(PLACE) as exe, pytest.raises(InvalidArgument, match="cannot run a str"):
        exe.run("main")


def test_arrays_of_tensors_of_several_shapes_are_merged_position_by_position():
    program = fluid.Program()
    with fluid.program_guard(program), fluid.unique_name.guard():
        x, layers = fluid.data("x", [None, 2]), fluid.layers
        array = layers.create_array("float32")
        for i, part in enumerate((x, layers.reduce_sum(x), layers.concat([x, x], 1))):
            layers.array_write(part, layers.fill_constant([1], "int64", i), array)
    compiled = CompiledProgram(program).with_data_parallel(places=[PLACE] * 2)
    rows = np.arange(8, dtype="float32").reshape(4, 2)
    with Executor(PLACE) as exe:
        (merged,) = exe.run(compiled, {"x": rows}, [array])
        (tensors,) = exe.run(compiled, {"x": rows}, [array], return_numpy=False)
        (apart,) = exe.run(compiled, {"x": rows}, [array], return_merged=False)
        (single,) = exe.run(program, {"x": rows}, [array], return_numpy=False)
    assert [part.tolist() for part in merged] == [
        rows.tolist(), [6.0, 22.0], np.concatenate([rows, rows], 1).tolist()
    ]  # fmt: skip
    assert [part.shape for part in apart[1]] == [(2, 2), (1,), (2, 4)]
    assert [tensor.shape() for tensor in tensors] == [[4, 2], [2], [4, 4]]
    assert [tensor.lod() for tensor in single] == [[], [], []]


def test_arrays_of_different_lengths_are_not_merged():
    with pytest.raises(FeedError, match=r"hold \[1, 2\] tensors, which cannot be merged"):
        compiled_program._merged([LoDTensorArray([1]), LoDTensorArray([1, 2])], return_numpy=True)


def test_a_fetched_value_of_one_element_converts_to_a_number():
    program = CompiledProgram(regression().program)
    _, ((loss,), *_) = trained(program, batches(6))
    assert "%.3f" % loss == f"{loss.item():.3f}"  # noqa: UP031  # as old scripts write it
