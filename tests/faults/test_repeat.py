"""Sync runs repeat bit for bit, however long each message takes."""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from tests.support.cluster import Cluster
from tests.support.faults import SlowEndpoint
from tests.support.job import Job, Trainer

RUNS, STEPS, TRAINERS = 20, 4, 3


def build() -> tuple[Any, Any, Any]:
    """A sparse table and two dense layers; sums of three floats show any other order."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
        rows = fluid.layers.embedding(ids, [300, 64], is_sparse=True)
        hidden = fluid.layers.fc(rows, 300, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        fluid.optimizer.Adam(0.01).minimize(loss)
    return main, startup, loss


def body(trainer: Trainer) -> list[float]:
    random = np.random.default_rng(trainer.number)
    losses = []
    for _ in range(STEPS):
        ids = random.integers(0, 300, (8, 1))
        y = random.normal(size=(8, 1)).astype("float32")
        losses.append(trainer.step({"ids": ids, "y": y}))
    return losses


@pytest.mark.slow
def test_twenty_runs_with_random_delays_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    dial, seeds = Cluster.dial, iter(range(10_000))

    def slow(made: Cluster, endpoint: str) -> SlowEndpoint:
        return SlowEndpoint(dial(made, endpoint), 0.006, next(seeds))

    monkeypatch.setattr(Cluster, "dial", slow)
    found = set()
    for _ in range(RUNS):
        losses, servers = Job(build, trainers=TRAINERS).run(body)
        names = sorted({n for s in servers for n in s.updates._program.global_block().vars})
        values = [
            np.asarray(server.updates.value(name)).tobytes()
            for server in servers
            for name in names
            if "GRAD" not in name and (cell := server.updates._scope.find_var(name)) is not None
            if isinstance(cell.value, np.ndarray)
        ]
        assert len(values) > 10
        found.add((str(losses), b"".join(values)))
    assert len(found) == 1
