"""Clusters of real processes equal one process on the union of the batches.

A few of each kind, and several shapes of cluster; tests/optimizer/test_split.py runs every
optimizer, schedule and decay in one process.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.optimizer.rules import TOLERANCE

from .conftest import Job

SCRIPT = Path(__file__).with_name("zoo_job.py")
CASES = [
    ("opt_sgd", 1, 1),
    ("opt_momentum", 3, 2),
    ("opt_adam", 2, 3),
    ("lr_warmup", 2, 2),
    ("frozen", 8, 2),
    ("shared", 2, 2),
    ("sparse_adagrad", 2, 2),
]

pytestmark = [pytest.mark.wire, pytest.mark.slow]


@pytest.fixture
def zoo_job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, 8, 0)
    yield made
    made.end()


@pytest.mark.parametrize(("case", "servers", "trainers"), CASES, ids=lambda v: str(v))
def test_a_cluster_equals_one_process(zoo_job: Job, case: str, servers: int, trainers: int) -> None:
    ends = ",".join(zoo_job.endpoints[:servers])

    def start(role: str, rank: int) -> Path:
        out = zoo_job.folder / f"{role}{rank}.npz"
        words = [case, role, str(rank), ends, str(trainers), str(out)]
        command: list[str | Path] = [sys.executable, SCRIPT, *words]
        zoo_job.start_other(f"{role}{rank}", command, PYTHONHASHSEED="0")
        return out

    for rank in range(servers):
        start("server", rank)
    outs = [start("trainer", rank) for rank in range(trainers)]
    alone = np.load(_ended(zoo_job, start("local", 0)))
    for out in outs:
        found = np.load(_ended(zoo_job, out))
        assert set(found.files) <= set(alone.files)
        for name in found.files:
            _close(name, found[name], alone[name])
    for rank in range(servers):
        assert zoo_job.processes[f"server{rank}"].wait(20) == 0


def _ended(job: Job, out: Path) -> Path:
    process = job.processes[out.stem]
    assert process.wait(60) == 0, process.text
    return out


def _close(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    scale = max(float(np.abs(wanted).max()), 1.0)
    assert float(np.abs(found - wanted).max()) <= TOLERANCE * scale, name
