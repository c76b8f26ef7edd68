"""What the pass weaves into a program, and where."""

import pytest

import bireme as fluid
from bireme.errors import ProgramError
from bireme.ir import Program
from bireme.passes.data_parallel import data_parallel
from bireme.passes.notes import Notes


def marked(rings: int = 1) -> Program:
    main = Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, Program()):
        x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(x, 3, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        fluid.optimizer.SGD(0.1).minimize(loss)
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    main._nccl_comm_num = rings
    return main


def woven(program: Program) -> list[tuple[str, list[str]]]:
    """Type and outputs of what the pass has added, with the neighbours that matter."""
    added = ("c_", "scale", "sgd")
    ops = program.global_block().ops
    return [(op.type, op.output_arg_names) for op in ops if op.type.startswith(added)]


class Strategy:
    fuse_all_reduce_ops = True
    gradient_scale_strategy = 0


def test_layers_travel_together_and_are_waited_for_before_updates():
    made = woven(data_parallel(marked()))
    assert made[:5] == [
        ("c_broadcast_once", []),
        ("scale", ["mean_0.tmp_0@GRAD"]),
        ("c_fused_allreduce_sum", ["fc_1.b_0@GRAD", "fc_1.w_0@GRAD"]),
        ("c_fused_allreduce_sum", ["fc_0.b_0@GRAD", "fc_0.w_0@GRAD"]),
        ("c_sync_comm_stream", ["fc_0.w_0@GRAD"]),
    ]
    assert [kind for kind, _ in made[5:]] == ["sgd"] * 4


def test_the_log_tells_what_fusing_saves(caplog):
    data_parallel(marked())
    assert caplog.messages == [
        "Find all_reduce operators: 4. To make the speed faster, some all_reduce ops are fused "
        "during training, after fusion, the number of all_reduce ops is 2."
    ]


def test_communicators_are_used_in_turn_and_each_is_waited_for():
    program = data_parallel(marked(rings=2))
    rings = [op.attr("ring_id") for op in program.global_block().ops if "ring_id" in op.attrs]
    kinds = [op.type for op in program.global_block().ops if "ring_id" in op.attrs]
    assert rings[:2] == [0, 1]
    assert sorted(rings[2:]) == [0, 1]
    assert kinds[2:] == ["c_sync_comm_stream"] * 2


def test_without_fusion_every_gradient_travels_alone():
    class Alone(Strategy):
        fuse_all_reduce_ops = False

    made = woven(data_parallel(marked(), Notes(Alone())))
    assert [kind for kind, _ in made].count("c_allreduce_sum") == 4


def test_sums_are_left_as_they_are_when_asked():
    class Sums(Strategy):
        gradient_scale_strategy = 1

    assert "scale" not in [kind for kind, _ in woven(data_parallel(marked(), Notes(Sums())))]


def test_the_argument_is_not_edited():
    program = marked()
    before = str(program)
    assert str(data_parallel(program)) != before
    assert str(program) == before


def test_gradients_without_a_loss_are_refused():
    program = marked()
    block = program.global_block()
    block.set_ops([op for op in block.ops if not op.role & 256])
    with pytest.raises(ProgramError, match="no operator that starts them"):
        data_parallel(program)
