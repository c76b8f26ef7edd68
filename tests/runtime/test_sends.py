"""When gradients leave: small ones side by side, large ones at once."""

import bireme as fluid
from bireme.ir import Block, Program
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
