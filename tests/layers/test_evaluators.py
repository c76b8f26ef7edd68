"""Evaluators whose sums live in the program; 1.8.5's averages are quoted."""

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument
from bireme.evaluator import Evaluator


def test_a_weighted_average_is_that_of_fluid() -> None:
    mean = fluid.average.WeightedAverage()
    mean.add(2.0, 1)
    mean.add(np.full((2, 2), 4.0), 2)
    assert mean.eval() == pytest.approx(np.full((2, 2), 10 / 3))
    mean.reset()
    with pytest.raises(InvalidArgument, match="no data"):
        mean.eval()
    with pytest.raises(InvalidArgument, match="str"):
        mean.add("x", 1)


def _sequence(values: list[list[int]], place: fluid.CPUPlace) -> fluid.LoDTensor:
    return fluid.create_lod_tensor(values, [[len(v) for v in values]], place)


def test_edit_distances_are_summed_over_batches_and_reset() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        x = fluid.layers.data("x", [1], dtype="int64", lod_level=1)
        y = fluid.layers.data("y", [1], dtype="int64", lod_level=1)
        evaluator = fluid.evaluator.EditDistance(x, y)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        place = fluid.CPUPlace()
        for wrong in (3, 9):
            feed = {
                "x": _sequence([[1, 2], [4, 5, 6]], place),
                "y": _sequence([[1, wrong], [4, 5, 6]], place),
            }
            of_batch = exe.run(main, feed=feed, fetch_list=evaluator.metrics)
            assert [v.tolist() for v in of_batch] == [[0.5], [1]]
        distance, errors = evaluator.eval(exe)
        assert distance.tolist() == [0.25]  # 1 of 2 symbols, in 2 of 4 sequences
        assert errors.tolist() == [0.5]
        evaluator.reset(exe)
        assert [v.tolist() for v in evaluator.eval(exe)] == [[0.0], [0.0]]


def test_states_are_named_as_in_saved_models() -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
        x = fluid.layers.data("x", [1], dtype="int64", lod_level=1)
        found = [state.name for state in fluid.evaluator.EditDistance(x, x).states]
    assert found == [
        "edit_distance_0_0_total_distance",
        "edit_distance_0_1_seq_num",
        "edit_distance_0_2_instance_error",
    ]


def test_chunks_are_counted_over_batches() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        x = fluid.layers.data("x", [1], dtype="int64", lod_level=1)
        y = fluid.layers.data("y", [1], dtype="int64", lod_level=1)
        evaluator = fluid.evaluator.ChunkEvaluator(x, y, "IOB", 1)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        place = fluid.CPUPlace()
        feed = {
            "x": _sequence([[0, 1, 2, 0]], place),  # chunks 0-1 and 3
            "y": _sequence([[0, 1, 2, 2]], place),  # chunk 0-1
        }
        for _ in range(2):
            exe.run(main, feed=feed)
        precision, recall, f1 = (v.item() for v in evaluator.eval(exe))
    assert (precision, recall, f1) == pytest.approx((0.5, 1.0, 2 / 3))


def test_an_evaluator_of_a_script_defines_its_metric() -> None:
    class Counts(Evaluator):
        pass

    with pytest.raises(NotImplementedError, match=r"Counts does not define eval\(executor\)"):
        Counts("counts").eval(None)


def test_selected_rows_of_a_scope_are_set_as_in_fluid() -> None:
    scope = fluid.Scope()
    rows = scope.var("w").get_selected_rows()
    rows.set_height(10)
    rows.set_rows([1, 7])
    rows.get_tensor().set(np.ones((2, 3), "float32"), fluid.CPUPlace())
    again = scope.find_var("w").get_selected_rows()
    assert (again.height(), again.rows(), again.numel()) == (10, [1, 7], 6)
    assert np.array(again.get_tensor()).tolist() == [[1.0] * 3] * 2
    assert scope.find_var("w").value.to_dense()[7].tolist() == [1.0] * 3
    alone = fluid.core.SelectedRows()
    assert (alone.height(), alone.rows()) == (0, [])


def test_a_tensor_takes_dimensions() -> None:
    tensor = fluid.Tensor()
    tensor._set_dims([2, 3])
    assert tensor._get_dims() == tensor.shape() == [2, 3]


def test_private_names_of_the_framework_work() -> None:
    x = fluid.data("x_of_private_names", [2])
    assert fluid.framework._get_var(x.name) is x
    clip = fluid.clip.ErrorClipByValue(1.0)
    x._set_error_clip(clip)
    assert x.error_clip is clip
    roles = fluid.core.op_proto_and_checker_maker
    assert (roles.kOpRoleAttrName(), roles.OpRole.Backward) == ("op_role", 1)
    with pytest.raises(NotImplementedError, match="RecomputeOptimizer"):
        fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1)).load({})
    counter = fluid.layers.learning_rate_scheduler._decay_step_counter(1)
    assert counter.dtype == fluid.VarType.FP32
