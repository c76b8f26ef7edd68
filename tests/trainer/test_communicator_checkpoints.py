"""Jobs with a communicator are saved and resumed as others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.io.checkpoint import newest_step
from bireme.ir import DistributedMode
from tests.support.job import Job, Trainer

from .test_communicator import (
    SPLIT,
    SYNCHRONOUS,
    alone,
    communicating,
    feed,
    geo,
    given,
    linear,
    model,
    numbers,
    total,
    whole,
)

MIDDLE, STEPS = 4, 10
MODES: dict[str, dict[str, Any]] = {
    "async": {**SPLIT},
    "half-async": {**SPLIT, "half_async": True},
    "sync": SYNCHRONOUS,
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    before = fluid.get_flags(["FLAGS_checkpoint_dir", "FLAGS_checkpoint_every_steps"])
    fluid.set_flags({"FLAGS_checkpoint_dir": str(tmp_path), "FLAGS_checkpoint_every_steps": MIDDLE})
    yield tmp_path
    fluid.set_flags(before)


@pytest.mark.parametrize("mode", MODES)
def test_a_job_with_a_communicator_is_saved_and_resumed(mode: str, root: Path) -> None:
    def train(begin: int, end: int) -> Any:
        def body(trainer: Trainer) -> int | None:
            found: int | None = fluid.io.load_checkpoint(
                str(root), trainer.main, scope=trainer.scope, trainer=trainer.number
            )
            with communicating(trainer):
                for step in range(begin, end):
                    trainer.step(feed(step, trainer.number))
            return found

        return body

    job: dict[str, Any] = {"sync": False, "config": MODES[mode]}
    Job(model(), **job).run(train(0, STEPS))
    assert newest_step(root) == 8
    found, _ = Job(model(), **job).run(train(8, STEPS))
    assert found == [8, 8]


def test_what_is_queued_is_sent_before_the_job_is_saved(root: Path) -> None:
    envs = {"communicator_send_queue_size": 20, "communicator_max_merge_var_num": 20}

    def train(trainer: Trainer) -> None:
        with communicating(trainer, envs=envs):
            for step in range(MIDDLE + 1):
                trainer.step(numbers(step, 0))

    job: dict[str, Any] = {"trainers": 1, "sync": False, "config": SPLIT}
    Job(linear(), **job).run(train)
    _, servers = Job(linear(), **job).run(lambda trainer: None)
    for name, value in total(1, MIDDLE).items():
        assert np.array_equal(whole(name, servers), value), name


@pytest.mark.parametrize("every", [3, 100])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_geo_trainer_that_is_resumed_ends_where_one_process_does(
    every: int, sparse: bool, root: Path
) -> None:
    """Steps since the last exchange are in the checkpoint, too."""
    build = model(sparse, lambda: fluid.optimizer.Momentum(0.1, 0.9))
    job = geo(build, trainers=1)

    def train(begin: int, end: int) -> Any:
        def body(trainer: Trainer) -> None:
            found = fluid.io.load_checkpoint(
                str(root), trainer.main, scope=trainer.scope, trainer=trainer.number
            )
            assert (found or 0) == begin
            with communicating(trainer, DistributedMode.GEO, **given(job, every)):
                for step in range(begin, end):
                    trainer.step(feed(step))

        return body

    job.run(train(0, MIDDLE + 1))
    _, servers = job.run(train(MIDDLE, STEPS))
    for name, value in alone(build, STEPS)[1].items():
        np.testing.assert_allclose(whole(name, servers), value, rtol=1e-4, atol=1e-6)
