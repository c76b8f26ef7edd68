"""A record that a server finds and cannot continue: of a job of another size, of another model, or
damaged.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError
from tests.support.cluster import cluster
from tests.support.job import Job, Trainer, save_to

from ..trainer.test_checkpoints import feed, model
from .test_durability import Small

SAVED, STEPS = 3, 6


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Path:
    return save_to(tmp_path, SAVED, durability="step")


def steps(begin: int, end: int) -> Callable[[Trainer], list[float]]:
    return lambda trainer: [trainer.step(feed(i, trainer.number)) for i in range(begin, end)]


def resumed(trainer: Trainer) -> list[float]:
    root = fluid.get_flags(["FLAGS_checkpoint_dir"])["FLAGS_checkpoint_dir"]
    number, scope = trainer.number, trainer.scope
    begin = fluid.io.load_checkpoint(root, trainer.main, scope=scope, trainer=number)
    assert begin == SAVED
    return steps(begin, STEPS)(trainer)


# -- another number of servers or trainers -----------------------------------------------------
@pytest.mark.parametrize("servers", [1, 3])
def test_a_job_of_other_servers_resumes_from_its_checkpoint(
    servers: int, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, _ = Job(model()).run(steps(0, STEPS))
    shutil.rmtree(root)
    Job(model()).run(steps(0, SAVED + 1))
    found, _ = Job(model(), servers=servers).run(resumed)
    np.testing.assert_allclose(found, np.array(whole)[:, SAVED:], rtol=1e-6, atol=1e-7)
    said = f"is the record of a job of 2 trainer(s) and 2 server(s), this one has 2 and {servers}"
    assert said in caplog.text


@pytest.mark.parametrize("trainers", [1, 3])
def test_a_job_of_other_trainers_resumes_from_its_checkpoint(trainers: int, root: Path) -> None:
    Job(model()).run(steps(0, SAVED + 1))
    without = root / "without a record"
    shutil.copytree(root, without, ignore=shutil.ignore_patterns("write-ahead"))
    found, _ = Job(model(), trainers=trainers).run(resumed)
    save_to(without, SAVED, durability="step")
    assert found == Job(model(), trainers=trainers).run(resumed)[0]


# -- another model -----------------------------------------------------------------------------
MODELS: dict[str, Any] = {
    "variable 'table' has 40 rows, and is saved as 60 rows": {"rows": 40},
    "the checkpoint does not hold variable": {
        "rows": 60,
        "optimizer": lambda: fluid.optimizer.Momentum(0.1, 0.9),
    },
    "this server owns no gradient": {},
}


@pytest.mark.parametrize("problem", MODELS)
def test_a_record_of_another_model_is_refused(problem: str, root: Path) -> None:
    Job(model(60), servers=1).run(steps(0, 2))
    with (
        pytest.raises(FormatError, match=problem) as caught,
        Job(model(**MODELS[problem]), servers=1).servers_up(),
    ):
        pass
    folder = root / "write-ahead" / "server-0"
    assert "the record of this server cannot be used: it is not of this model" in str(caught.value)
    assert f"{folder}" in str(caught.value.where)
    assert f"or remove {folder} to resume" in str(caught.value.hint)


# -- damage ------------------------------------------------------------------------------------
def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


def first_round(log: Path) -> int:
    """A place in its gradient."""
    return log.read_bytes().index(np.full(4, 1.0, np.float32).tobytes())


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a round": (lambda f: flip(f / "log-000001", first_round(f / "log-000001")), "log-000001"),
    "the first record": (lambda f: flip(f / "log-000001", 40), "log-000001"),
    "the head": (lambda f: flip(f / "log-000002", 2), "log-000002"),
    "an older log": (lambda f: (f / "log-000001").write_bytes(bytes(100)), "log-000001"),
    "no base": (lambda f: shutil.rmtree(f / "start"), "server-0"),
    "the base": (lambda f: flip(f / "start" / "data", 3), "data"),
    "records twice": (lambda f: repeat(f / "log-000001"), "log-000001"),
}


def repeat(log: Path) -> None:
    data = log.read_bytes()
    log.write_bytes(data + data[8:])


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(damage: str, root: Path) -> None:
    do, name = DAMAGES[damage]
    with cluster() as made:
        small = Small(made)
        small.step()
        small.step()
        small.restart()
        small.step()
        small.server.kill()
        small.server.service.close()
        do(root / "write-ahead" / "server-0")
        with pytest.raises(FormatError) as caught:
            small.start()
    assert name in str(caught.value.where)
    assert f"remove {root}" in str(caught.value.hint)


def test_the_newest_log_is_named_if_nothing_of_it_is_there(root: Path) -> None:
    with cluster() as made:
        small = Small(made)
        small.step()
        small.restart()
        small.step()
        small.server.kill()
        small.server.service.close()
        log = root / "write-ahead" / "server-0" / "log-000002"
        log.write_bytes(bytes(100))
        small.start()
        with pytest.raises(Exception, match=f"ends with {log}"):
            small.step()
