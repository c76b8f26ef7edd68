"""What a server says it holds: slices with their states, and tables that grow."""

import numpy as np

import bireme as fluid
from tests.support.job import Job, Trainer


def model() -> tuple[fluid.Program, fluid.Program, object]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.data("ids", [None, 1], dtype="int64")
        attr = fluid.ParamAttr(name="table")
        rows = fluid.embedding(
            ids, size=[-1, 4], is_sparse=True, is_distributed=True, param_attr=attr
        )
        h = fluid.layers.fc(fluid.layers.reshape(rows, [-1, 4]), 8192, param_attr="w")
        loss = fluid.layers.mean(h)
        fluid.optimizer.Adagrad(0.1).minimize(loss)
    return main, startup, loss


def test_servers_hold_all_of_the_model_once() -> None:
    def body(trainer: Trainer) -> None:
        trainer.step({"ids": np.arange(5).reshape(-1, 1)})

    _, servers = Job(model).run(body)
    held = [row for server in servers for row in server.updates.shards()]
    dense = [row for row in held if row["variable"] == "w"]
    assert len(dense) == 2
    assert sum(row["shape"][0] * row["shape"][1] for row in dense) == 4 * 8192
    for row in dense:  # Adagrad keeps a moment per number
        assert row["bytes"] == row["state_bytes"] == 4 * np.prod(row["shape"])
    tables = [row for row in held if row["kind"] == "table"]
    assert [row["name"] for row in tables] == ["table", "table"]
    assert sum(row["shape"][0] for row in tables) == 5
    assert sum(row["bytes"] for row in tables) == 5 * 4 * 4
    assert {row["variable"] for row in held} == {"w", "table", "fc_0.b_0"}
