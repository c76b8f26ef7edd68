"""A click-through model learns from real rows of the Criteo set with servers, its table never
declared in full.
"""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import DistributedMode
from bireme.trainer.communicator import Communicator
from bireme.transpiler import GeoSgdTranspiler
from tests.support.clicks import FIELDS, IDS, SAMPLE, clicks
from tests.support.job import Build, Job, Trainer, save_to

pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="no sample of the Criteo set is here")

BATCH, EPOCHS = 10, 3


def model(rows: int) -> Build:
    """A factorisation machine beside a small deep network over the same vectors."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids = fluid.data("feat_idx", [None, FIELDS], dtype="int64")
            values = fluid.layers.data("feat_value", [FIELDS])
            label = fluid.layers.data("label", [1])
            begin = fluid.initializer.Uniform(-0.05, 0.05)
            parts = [
                fluid.embedding(
                    ids,
                    [rows, width],
                    is_sparse=True,
                    is_distributed=True,
                    param_attr=fluid.ParamAttr(name=name, initializer=begin),
                )
                for name, width in (("first", 1), ("factors", 4))
            ]
            scaled = [fluid.layers.elementwise_mul(part, values, axis=0) for part in parts]
            flat = [
                fluid.layers.reshape(part, [-1, FIELDS * width])
                for part, width in zip(scaled, (1, 4), strict=True)
            ]
            deep = fluid.layers.fc(flat[1], 16, act="relu")
            alone = fluid.layers.reduce_sum(flat[0], dim=1, keep_dim=True)
            logit = fluid.layers.elementwise_add(alone, fluid.layers.fc(deep, 1))
            cost = fluid.layers.sigmoid_cross_entropy_with_logits(logit, label)
            loss = fluid.layers.mean(cost)
            fluid.optimizer.Adagrad(0.05).minimize(loss)
        return main, startup, loss

    return build


def batches(trainer: int | None = None) -> list[dict[str, Any]]:
    """All batches of all epochs, or a trainer's halves of them."""
    rows, found = clicks(), []
    half = BATCH // 2
    part = slice(None) if trainer is None else slice(trainer * half, (trainer + 1) * half)
    for begin in range(0, len(rows["label"]), BATCH):
        found.append({n: v[begin : begin + BATCH][part] for n, v in rows.items()})
    return found * EPOCHS


def train(trainer: Trainer) -> list[float]:
    return [trainer.step(feed) for feed in batches(trainer.number)]


def train_alone() -> list[float]:
    main, startup, loss = model(IDS)()
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        return [float(executor.run(main, f, [loss], scope=scope)[0][0]) for f in batches()]


def test_sync_gives_the_losses_of_one_process_with_the_table_in_full() -> None:
    found, servers = Job(model(-1)).run(train)
    np.testing.assert_allclose(np.mean(found, axis=0), train_alone(), rtol=1e-5)
    rows = {t.name: sum(len(s.updates.tables[t.name]) for s in servers)
            for t in servers[0].updates.tables}  # fmt: skip
    met = len(np.unique(clicks()["feat_idx"]))
    assert rows == {"first": met, "factors": met}


def test_a_restart_with_three_servers_changes_nothing(tmp_path: Path) -> None:
    whole, _ = Job(model(-1)).run(train)
    middle = len(whole[0]) // 2
    save_to(tmp_path, middle)
    Job(model(-1)).run(lambda t: [t.step(f) for f in batches(t.number)[:middle]])

    def go_on(trainer: Trainer) -> list[float]:
        begin = fluid.io.load_checkpoint(
            tmp_path, trainer.main, scope=trainer.scope, trainer=trainer.number
        )
        return [trainer.step(f) for f in batches(trainer.number)[begin:]]

    found, _ = Job(model(-1), servers=3).run(go_on)
    np.testing.assert_allclose(found, np.array(whole)[:, middle:], rtol=1e-6, atol=1e-7)


def test_async_learns() -> None:
    found, _ = Job(model(-1), sync=False).run(train)
    epochs = np.mean(found, axis=0).reshape(EPOCHS, -1).mean(axis=1)
    assert epochs[-1] < 0.8 * epochs[0]


def test_geo_learns() -> None:
    job = Job(model(-1), sync=False, door=GeoSgdTranspiler)
    transpiler, *_ = job.transpiled()
    words = {"push_vars": transpiler.vars_info, "trainers": 2, "push_nums": 3}
    starting = threading.Lock()  # the global scope belongs to one thread at a time

    def body(trainer: Trainer) -> list[float]:
        communicator = Communicator(trainer.main, DistributedMode.GEO, words)
        with starting, fluid.scope_guard(trainer.scope):
            communicator.start()
        losses = train(trainer)
        communicator.stop()
        return losses

    found, servers = job.run(body)
    epochs = np.mean(found, axis=0).reshape(EPOCHS, -1).mean(axis=1)
    assert epochs[-1] < 0.8 * epochs[0]
    met = len(np.unique(clicks()["feat_idx"]))
    held = sum(len(s.updates.tables["factors"]) for s in servers)
    assert 0.95 * met < held <= met  # a row whose feature is always zero does not move
