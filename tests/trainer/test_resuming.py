"""A job that is resumed again and again ends as the one that never stopped."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.io.checkpoint import newest_checkpoint
from bireme.io.disk import Disk
from bireme.ir import DistributedMode
from bireme.trainer.communicator import Communicator
from bireme.transpiler import GeoSgdTranspiler
from bireme.transpiler.ps_dispatcher import HashName
from tests.support.job import Build, Job, Trainer
from tests.support.thorough import only_thorough

from .test_checkpoints import model, root  # noqa: F401  # a fixture

ROWS, EVERY, BATCH = 200, 4, 16  # as many rows as two servers share, and ids among all of them
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.01),
    "momentum": lambda: fluid.optimizer.Momentum(0.001, 0.9),
    "adam": lambda: fluid.optimizer.Adam(fluid.layers.exponential_decay(0.02, 3, 0.5)),
}
TABLES = {"sparse": (ROWS, True), "dense": (ROWS, False), "growing": (-1, True)}
USUAL = {("sparse", "sgd"), ("dense", "momentum"), ("sparse", "adam"), ("growing", "adam")}
KINDS = [
    pytest.param(*kind, marks=[] if kind in USUAL else [only_thorough])
    for kind in product(TABLES, OPTIMIZERS)
]


def feed(step: int, trainer: int) -> dict[str, Any]:
    """Ids rise over all trainers: which others momentum overlooks depends on the servers' number,
    as with Fluid's.
    """
    random = np.random.default_rng((step, trainer))
    half = ROWS // 2
    ids = np.sort(random.integers(trainer * half, (trainer + 1) * half, (BATCH, 1)), axis=0)
    return {"ids": ids, "y": random.normal(size=(BATCH, 1)).astype("float32")}


def part(folder: Path, begin: int) -> Callable[[Trainer], list[float]]:
    """Steps `begin`... of a job, from the checkpoint that the job before it has left."""

    def train(trainer: Trainer) -> list[float]:
        found = fluid.io.load_checkpoint(
            folder, trainer.main, scope=trainer.scope, trainer=trainer.number
        )
        assert (found or 0) == begin
        return [trainer.step(feed(i, trainer.number)) for i in range(begin, begin + EVERY)]

    return train


def whole(build: Build, lives: int, folder: Path, **settings: Any) -> Any:
    """The losses of a job that nothing interrupts."""

    def train(trainer: Trainer) -> list[float]:
        return [trainer.step(feed(i, trainer.number)) for i in range(EVERY * lives)]

    losses, _ = Job(build, **settings).run(train)
    for each in folder.iterdir():
        Disk().remove(each)
    return np.array(losses)


def resumed(build: Build, servers: Sequence[int], folder: Path, **settings: Any) -> Any:
    """The losses of a job of as many lives as `servers` has numbers."""
    found = [
        Job(build, servers=count, **settings).run(part(folder, EVERY * life))[0]
        for life, count in enumerate(servers)
    ]
    return np.concatenate([np.array(losses) for losses in found], axis=1)


def held_twice(folder: Path) -> set[str]:
    """Variables of which both trainers and servers have saved something."""
    saved = newest_checkpoint(folder)
    assert saved is not None
    names = {"server": set[str](), "trainer": set[str]()}
    for name, each in saved.parts.items():
        names[name.partition("-")[0]].update(entry.name for entry in each.entries)
    return names["server"] & names["trainer"]


@pytest.mark.parametrize(("table", "optimizer"), KINDS)
def test_four_resumes_change_nothing(table: str, optimizer: str, root: Path) -> None:  # noqa: F811
    rows, sparse = TABLES[table]
    build = model(rows, OPTIMIZERS[optimizer], sparse)
    expected = whole(build, 5, root)
    np.testing.assert_array_equal(resumed(build, [2] * 5, root), expected)
    assert held_twice(root) == set()


@pytest.mark.parametrize(("table", "optimizer"), KINDS)
def test_the_number_of_servers_may_change_each_time(
    table: str,
    optimizer: str,
    root: Path,  # noqa: F811
) -> None:
    rows, sparse = TABLES[table]
    build = model(rows, OPTIMIZERS[optimizer], sparse)
    expected = whole(build, 5, root)
    found = resumed(build, [2, 3, 1, 2, 4], root)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("servers", [[2, 2, 2], [1, 3, 2]])
def test_several_slices_of_a_variable_on_one_server(
    servers: list[int],
    root: Path,  # noqa: F811
) -> None:
    build, config = model(ROWS, OPTIMIZERS["adam"]), {"split_method": HashName}
    expected = whole(build, 3, root, config=config)
    found = resumed(build, servers, root, config=config)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


STATISTICS = ("batch_norm_0.w_1", "batch_norm_0.w_2")


def statistics(trainer: Trainer) -> list[Any]:
    return [np.array(trainer.scope.var(name).get()) for name in STATISTICS]


def test_every_trainer_keeps_its_own_statistics(root: Path) -> None:  # noqa: F811
    def train(trainer: Trainer) -> list[Any]:
        begin = fluid.io.load_checkpoint(
            root, trainer.main, scope=trainer.scope, trainer=trainer.number
        )
        for step in range(begin or 0, (begin or 0) + EVERY):
            trainer.step(feed(step, trainer.number))
        return statistics(trainer)

    def train_on(trainer: Trainer) -> list[Any]:
        for step in range(2 * EVERY):
            trainer.step(feed(step, trainer.number))
        return statistics(trainer)

    wanted, _ = Job(model(ROWS)).run(train_on)
    for folder in root.iterdir():
        Disk().remove(folder)
    first, _ = Job(model(ROWS)).run(train)
    saved = newest_checkpoint(root)
    assert saved is not None
    for number, held in enumerate(first):
        for name, value in zip(STATISTICS, held, strict=True):
            np.testing.assert_array_equal(saved.read(name, near=f"trainer-{number}"), value)
    assert not np.array_equal(first[0][0], first[1][0])
    again, _ = Job(model(ROWS)).run(train)
    np.testing.assert_array_equal(again, wanted)


def test_a_sync_checkpoint_needs_the_part_of_every_trainer(root: Path) -> None:  # noqa: F811
    saved = Event()

    def train(trainer: Trainer) -> None:
        for step in range(EVERY):
            trainer.step(feed(step, trainer.number))
        if trainer.number == 1:  # it finishes early, but not before all have been asked to save
            assert saved.wait(30)
            return
        saved.set()
        for step in range(EVERY, 2 * EVERY):
            trainer.step(feed(step, trainer.number))

    Job(model(ROWS)).run(train)
    late = newest_checkpoint(root)
    assert late is not None
    assert (late.step, "trainer-1" in late.parts) == (2 * EVERY, False)
    Disk().remove(late.folder)
    early = newest_checkpoint(root)
    assert early is not None
    Disk().remove(early.folder / "trainer-1")
    assert newest_checkpoint(root) is None


def test_servers_of_geo_save_parts_of_their_own(root: Path) -> None:  # noqa: F811
    job = Job(model(ROWS, OPTIMIZERS["sgd"]), trainers=1, sync=False, door=GeoSgdTranspiler)
    transpiler, *_ = job.transpiled()
    words = {"push_vars": transpiler.vars_info, "trainers": 1, "push_nums": 2}

    def train(trainer: Trainer) -> None:
        with fluid.scope_guard(trainer.scope):
            communicator = Communicator(trainer.main, DistributedMode.GEO, words)
            communicator.start()
        for step in range(EVERY):
            trainer.step(feed(step, trainer.number))
        communicator.stop()

    job.run(train)
    saved = newest_checkpoint(root)
    assert saved is not None
    assert sorted(saved.parts) == ["server-0", "server-1", "trainer-0"]
    assert saved.read("table").shape == (ROWS, 160)
    assert held_twice(root) == set()
