"""FLAGS_durability=step: a server that is killed at any point loses nothing."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import ConfigError, FormatError, PeerLost
from bireme.io.disk import Disk
from bireme.io.write_ahead_log import FOLDER
from bireme.ir import DistributedMode
from bireme.monitoring.counters import tally
from bireme.pserver.journal import recorder
from bireme.pserver.journal.recovery import forget
from bireme.trainer.allgather import share
from bireme.trainer.checkpoints import save
from bireme.trainer.registry import trainers
from tests.support.cluster import TIMES, Cluster, Server, cluster, descending, tiny_server
from tests.support.crashes import Crash, Outcome, run_job
from tests.support.job import Job, Trainer, save_to
from tests.support.thorough import only_thorough

from ..trainer.test_checkpoints import model

STEPS, SAVED, BATCH = 5, 3, 8


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Path:
    """Where servers record every round, and jobs save after every `SAVED` steps."""
    return save_to(tmp_path, SAVED, durability="step")


def feed(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng((step, trainer))
    ids = random.integers(0, 30, (BATCH, 1))
    return {"ids": ids, "y": random.normal(size=(BATCH, 1)).astype("float32")}


def train(trainer: Trainer) -> list[float]:
    """Steps with a table, dense parameters, a schedule and Adam; in the middle all trainers share
    something.
    """
    losses = []
    for step in range(STEPS):
        losses.append(trainer.step(feed(step, trainer.number)))
        if step == 1:
            own = {"mine": np.array([trainer.number + 0.5])}
            shared = share(trainers.of(trainer.number).servers, own)
            losses += shared["mine"].reshape(-1).tolist()
    return losses


@cache
def undisturbed() -> Outcome:
    return run_job(Job(model()), train)


def killed(crash: Crash, root: Path, job: Job | None = None) -> Outcome:
    """A job whose first server is killed and starts again."""
    whole = undisturbed()
    shutil.rmtree(root)
    root.mkdir()
    found = run_job(job or Job(model()), train, crash)
    assert crash.happened.is_set()
    found.check_equals(whole)
    return found


POINTS = [
    ("before apply", 3),
    ("after apply", 2),
    ("within append", 6),  # a record of which the half is on disk
    ("after append", 5),
    ("heard Push", 5),
    ("after Send", 9),
    ("after Shared", 1),
    ("within write", 4),  # the checkpoint
    ("before rename", 2),
]


@pytest.mark.parametrize(("point", "count"), POINTS)
def test_a_killed_server_loses_nothing(point: str, count: int, root: Path) -> None:
    killed(Crash(point, count), root)


def everywhere() -> Iterator[tuple[str, int]]:
    for moment in ("before", "after"):
        yield from ((f"{moment} apply", count) for count in range(1, STEPS + 1))
    for moment in ("before", "within", "after"):
        yield from ((f"{moment} append", count) for count in range(1, 12))
        for change, most in (("write", 7), ("rename", 3), ("make", 5), ("unlink", 2)):
            yield from ((f"{moment} {change}", count) for count in range(1, most))
    for moment in ("before", "heard"):
        for said in ("Push", "Barrier", "Pull", "Save", "Lookup", "Share"):
            yield from ((f"{moment} {said}", count) for count in range(1, 11, 2))
    for said in ("Accepted", "Send", "Shared", "Welcome"):
        yield from ((f"after {said}", count) for count in range(1, 20, 2))


@only_thorough
@pytest.mark.parametrize(("point", "count"), list(everywhere()))
def test_wherever_a_server_is_killed(point: str, count: int, root: Path) -> None:
    whole = undisturbed()
    shutil.rmtree(root)
    root.mkdir()
    crash = Crash(point, count)
    found = run_job(Job(model()), train, crash)
    found.check_equals(whole)  # also where the job is over before the point is passed so often


# -- the size of the record --------------------------------------------------------------------
def logs(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("write-ahead/server-0/*"))


def test_a_checkpoint_shortens_the_record(root: Path) -> None:
    undisturbed.__wrapped__()
    assert logs(root) == ["log-000002", "start"]


def test_without_checkpoints_the_variables_are_saved_now_and_then(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed()
    fluid.set_flags({"FLAGS_checkpoint_every_steps": 0})
    monkeypatch.setattr(recorder, "SMALLEST", 0)
    monkeypatch.setattr(recorder, "RATIO", 0)
    killed(Crash("before apply", 4), root)
    found = logs(root)
    assert "log-000001" not in found
    assert [name for name in found if name.startswith("base-")]


# -- one server and its trainers, call by call -------------------------------------------------
class Small:
    """A server `s0` with one parameter, which goes down by the mean of its gradients."""

    def __init__(self, made: Cluster, trainers: int = 1) -> None:
        self.made = made
        self._count = trainers
        self.server = self.start()
        self.trainers = [made.trainer(number) for number in range(trainers)]

    def start(self, disk: Disk | None = None) -> Server:
        program, scope = tiny_server(trainers=self._count)
        self.made.disk = disk
        self.server = self.made.serve(program, scope, descending(program, scope))
        return self.server

    def restart(self) -> Server:
        self.server.kill()
        self.server.service.close()
        return self.start()

    def push(self, number: int = 0, value: float = 1.0) -> None:
        gradient = np.full(4, value, np.float32)
        self.trainers[number].servers.push("s0", {f"w@GRAD.trainer_{number}": gradient})

    def exchange(self, number: int = 0) -> float:
        pool = self.trainers[number].servers
        pool.barrier(["s0"], strict=True)
        return float(pool.exchange({"s0": ("w",)})["s0"]["w"][0])

    def step(self, value: float = 1.0) -> float:
        self.push(0, value)
        return self.exchange()

    def save(self, root: Path, step: int) -> Path:
        folder = root / f"step-{step:012d}-{1:016x}"
        save(self.trainers[0].servers, str(folder), step, ("server-0",))
        service = self.server.service
        service._worker.submit(int).result()  # it has copied
        service._saver.close()
        service._saver._disk = None
        return folder

    @property
    def w(self) -> float:
        return float(self.server.updates.value("w")[0])


@pytest.fixture
def small() -> Iterator[Small]:
    with cluster() as made:
        yield Small(made)


def test_pushes_that_a_read_has_acknowledged_are_sent_again(small: Small) -> None:
    assert small.step() == -1
    small.push(value=4)
    assert float(small.trainers[0].servers.read({"s0": ("w",)})["s0"]["w"][0]) == -1
    small.restart()
    assert small.w == -1
    assert small.exchange() == -5
    assert small.step() == -6


def test_a_server_may_be_killed_again_and_again(small: Small, root: Path) -> None:
    for number in range(1, 9):
        assert small.step() == -number
        small.restart()
    assert small.step() == -9
    folder = small.save(root, 9)
    assert small.step() == -10
    small.restart()
    assert small.step() == -11
    assert folder.is_dir()  # the base of the record


def test_a_checkpoint_may_be_named_by_another_path(small: Small, root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    small.step()
    small.save(root.parent / "link", 1)
    small.step()
    assert logs(root) == ["log-000002", "start"]
    small.restart()
    assert small.step() == -3


def test_a_log_that_is_missing_is_found_out(small: Small, root: Path) -> None:
    for _ in range(3):
        small.step()
        small.restart()
    small.step()
    small.server.kill()
    small.server.service.close()
    (root / "write-ahead" / "server-0" / "log-000002").unlink()
    with pytest.raises(FormatError, match=r"log-000003 begins after round 2, .* after round 1"):
        small.start()


def test_a_damaged_record_is_refused_by_the_trainer_who_has_seen_more(
    small: Small, root: Path
) -> None:
    for _ in range(3):
        small.step()
    small.server.kill()
    small.server.service.close()
    (log,) = root.glob("write-ahead/server-0/log-*")
    log.write_bytes(log.read_bytes()[:-1])
    server = small.start()
    for failing in (small.step, server.result):  # the server does not say that its trainer is lost
        with pytest.raises(PeerLost) as caught:
            failing()
        assert "ends with round 2, but trainer 0 has seen round 3" in str(caught.value)
        assert f"{log}, which has no complete record from byte" in str(caught.value)
        assert caught.value.peer == "server s0"


def test_a_server_that_records_nothing_is_not_continued(small: Small) -> None:
    small.step()
    fluid.set_flags({"FLAGS_durability": "checkpoint"})
    small.restart()
    with pytest.raises(PeerLost, match="has not introduced itself"):
        small.step()


def test_trainers_wait_as_long_as_the_flag_says() -> None:
    with cluster(times=replace(TIMES, silence=0.2, rejoin=0.5)) as made:
        small = Small(made)
        small.step()
        small.server.kill()
        small.server.service.close()
        with pytest.raises(PeerLost, match="FLAGS_rejoin_seconds"):
            small.step()


# -- disks -------------------------------------------------------------------------------------
class Full(Disk):
    """A disk that takes so many records, and then refuses."""

    def __init__(self, left: int) -> None:
        self.left = left

    def append(self, file: BinaryIO, pieces: Iterable[Any]) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(28, "No space left on device")
        super().append(file, pieces)


def test_a_full_disk_ends_the_record_and_not_the_job(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = tally.unrecorded
    with cluster() as made:
        small = Small(made)
        small.server.kill()
        small.server.service.close()
        shutil.rmtree(root / FOLDER)
        small.start(Full(3))
        small.trainers = [made.trainer(0)]
        for number in range(1, 5):
            assert small.step() == -number
        assert tally.unrecorded == before + 1
        assert "No space left on device" in caplog.text
        assert not logs(root)  # nobody may continue from half of it
        small.save(root, 4)
        assert small.step() == -5
        assert logs(root) == ["log-000002"]
        small.restart()
        assert small.w == -5
        assert small.step() == -6
        with pytest.raises(PeerLost, match="the values that this server began with"):
            forget(small.server.updates)  # the end of the first record was the end of its start
        assert not logs(root)


def test_a_record_that_cannot_begin_is_the_users_to_mend(root: Path) -> None:
    (root / FOLDER).write_text("in the way")
    with cluster() as made, pytest.raises(ConfigError, match="the record cannot be written"):
        Small(made)


# -- what cannot be recorded -------------------------------------------------------------------
REFUSED: dict[str, tuple[dict[str, Any], int]] = {
    "give checkpoint or step": ({"FLAGS_durability": "always"}, DistributedMode.SYNC),
    "needs FLAGS_checkpoint_dir": ({"FLAGS_checkpoint_dir": ""}, DistributedMode.SYNC),
    "needs a local FLAGS_checkpoint_dir": (
        {"FLAGS_checkpoint_dir": "memory://kept"},
        DistributedMode.SYNC,
    ),
    "is for sync jobs, and this one runs in async mode": ({}, DistributedMode.ASYNC),
    "and FLAGS_rpc_fluid=1 exclude each other": ({"FLAGS_rpc_fluid": True}, DistributedMode.SYNC),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_cannot_be_recorded_is_refused_before_anybody_is_served(problem: str) -> None:
    settings, mode = REFUSED[problem]
    fluid.set_flags(settings)
    program, scope = tiny_server(mode=mode)
    with cluster() as made, pytest.raises(ConfigError, match=problem):
        made.serve(program, scope, descending(program, scope))
