"""When gradients leave for servers or other ranks: small ones side by side, large ones at once."""

import bireme as fluid
from bireme.ir import Block, Program
from bireme.passes.data_parallel import data_parallel
from bireme.runtime.analysis import accesses
from bireme.runtime.sends import sent_gradients, together
from bireme.transpiler import DistributeTranspiler


def trainer(sizes: list[int], servers: int = 2) -> Block:
    main, startup = Program(), Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        h = fluid.layers.data("x", [8])
        for size in sizes:
            h = fluid.layers.fc(h, size)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(h))
    t = DistributeTranspiler()
    ends = ",".join(f"127.0.0.1:{i + 1}" for i in range(servers))
    t.transpile(0, program=main, pservers=ends, trainers=2, startup_program=startup)
    return t.get_trainer_program(wait_port=False).global_block()


def test_small_gradients_leave_together_at_the_barrier() -> None:
    block = trainer([4] * 5)
    types = [access.op.type for access in together(accesses(block), block)]
    at = types.index("send_barrier")
    assert types[at - 10 : at] == ["send"] * 10
    assert "send" not in types[: at - 10]


def test_every_operator_still_runs_once_and_sends_follow_what_they_send() -> None:
    block = trainer([4, 600, 600, 4])
    found = accesses(block)
    moved = together(found, block)
    assert sorted(a.index for a in moved) == [a.index for a in found]
    for position, access in enumerate(moved):
        before = {name for earlier in moved[:position] for name in earlier.writes}
        if access.op.type == "send":
            assert before.issuperset(access.reads)


def test_a_large_gradient_leaves_at_once() -> None:
    block = trainer([600, 600])
    moved = together(accesses(block), block)
    types = [access.op.type for access in moved]
    split = types.index("split_byref")
    (send,) = [i for i, a in enumerate(moved) if a.reads == moved[split].writes]
    assert set(types[split + 1 : send]) <= {"send"}
    assert "mul_grad" in types[send:]


def test_a_small_gradient_does_not_wait_for_one_who_changes_it() -> None:
    block = trainer([4])
    at, send = next((i, op) for i, op in enumerate(block.ops) if op.type == "send")
    (name,) = send.input("X")
    block._insert_op(
        at + 1, type="scale", inputs={"X": name}, outputs={"Out": name}, attrs={"scale": 2.0}
    )
    moved = together(accesses(block), block)
    order = [a.op.type for a in moved if name in a.reads and a.op.type in ("send", "scale")]
    assert order == ["send", "scale"]


def test_large_matrices_that_are_sent_get_a_buffer_whole_or_sliced() -> None:
    block = trainer([600, 600, 4])
    offered = sent_gradients(accesses(block), block)
    assert offered == {"fc_1.w_0@GRAD": ((600, 600), "float32")}
    whole = trainer([600, 600, 4], servers=1)
    assert list(sent_gradients(accesses(whole), whole)) == ["fc_1.w_0@GRAD.trainer_0"]


def test_filters_and_whole_tables_get_a_buffer_too() -> None:
    main, startup = Program(), Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.layers.data("ids", [1], dtype="int64")
        rows = fluid.layers.embedding(ids, size=[600, 64])
        image = fluid.layers.reshape(rows, [-1, 64, 1, 1])
        h = fluid.layers.conv2d(image, 600, 1, bias_attr=False)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(h))
    t = DistributeTranspiler()
    t.transpile(0, program=main, pservers="127.0.0.1:1", trainers=2, startup_program=startup)
    block = t.get_trainer_program(wait_port=False).global_block()
    shapes = {shape for shape, _ in sent_gradients(accesses(block), block).values()}
    assert shapes == {(600, 64), (600, 64, 1, 1)}


def rank_of_two(sizes: list[int]) -> Block:
    main, startup = Program(), Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        h = fluid.layers.data("x", [8])
        for size in sizes:
            h = fluid.layers.fc(h, size, bias_attr=False)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(h))
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    return data_parallel(main).global_block()


def types(block: Block) -> list[str]:
    return [access.op.type for access in together(accesses(block), block)]


def test_small_all_reduces_start_together_where_their_sums_are_awaited() -> None:
    found = types(rank_of_two([4] * 5))
    at = found.index("c_sync_comm_stream")
    assert found[at - 5 : at] == ["c_allreduce_sum"] * 5
    assert "c_allreduce_sum" not in found[: at - 5]


def test_a_large_all_reduce_starts_at_once_and_takes_the_small_ones_along() -> None:
    found = types(rank_of_two([4, 600, 600, 4]))
    starts = [i for i, kind in enumerate(found) if kind == "c_allreduce_sum"]
    assert starts[0] + 1 == starts[1]  # the last layer's, then the large one
    assert "mul_grad" in found[starts[1] : starts[2]]


def test_whatever_touches_a_sum_comes_after_its_all_reduce() -> None:
    block = rank_of_two([4])
    at, start = next((i, op) for i, op in enumerate(block.ops) if op.type == "c_allreduce_sum")
    (name,) = start.input("X")
    kept = block.create_var(name="kept", shape=block.var(name).shape, dtype="float32")
    block._insert_op(at + 1, type="assign", inputs={"X": name}, outputs={"Out": kept})
    found = types(block)
    assert found.index("c_allreduce_sum") < found.index("assign")


def test_marks_of_computed_values_go_with_the_all_reduces_that_they_precede() -> None:
    block = rank_of_two([4, 4])
    for at in reversed([i for i, op in enumerate(block.ops) if op.type == "c_allreduce_sum"]):
        slots = {"inputs": {"X": block.ops[at].input("X")[0]}}
        slots["outputs"] = {"Out": slots["inputs"]["X"]}
        block._insert_op(at, type="c_sync_calc_stream", **slots)
    found = types(block)
    pair = ["c_sync_calc_stream", "c_allreduce_sum"]
    at = found.index("c_sync_comm_stream")
    assert found[at - 4 : at] == [*pair, *pair]
