"""A disk that refuses to save ends no job: it is told, counted, and tried again."""

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.io.checkpoint import newest_checkpoint, newest_step
from bireme.io.disk import Disk
from bireme.monitoring.counters import Tally, tally
from tests.support.job import Job, Trainer
from tests.support.waiting import until

from .test_checkpoints import feed, model, root  # noqa: F401  # a fixture

STEPS, BAD = 3, 2  # the save after this step fails
ROLES = {"trainers": "bireme.trainer.checkpoints", "servers": "bireme.pserver.store.checkpoints"}


class Full(Disk):
    """Refuses the n-th operation of the bad step's save; of a file opening, writing and syncing
    count for themselves.
    """

    last = 0

    def __init__(self) -> None:
        self.left = self.last

    def _try(self, path: Path) -> None:
        if f"step-{BAD:012d}-" in str(path):
            self.left -= 1
            if self.left == -1:
                raise OSError(errno.ENOSPC, "No space left on device")

    def make(self, folder: Path) -> None:
        self._try(folder)
        super().make(folder)

    def write(self, path: Path, pieces: Iterable[Any]) -> None:
        given = b"".join(bytes(piece) for piece in pieces)
        self._try(path)
        path.write_bytes(given[: len(given) // 2])
        self._try(path)
        path.write_bytes(given)
        self._try(path)

    def rename(self, old: Path, new: Path) -> None:
        self._try(old)
        super().rename(old, new)

    def sync(self, folder: Path) -> None:
        self._try(folder)
        super().sync(folder)


def train(trainer: Trainer) -> list[float]:
    return [trainer.step(feed(i, trainer.number)) for i in range(STEPS)]


@pytest.fixture
def expected(root: Path) -> Any:  # noqa: F811
    """The losses where nothing is saved; from here on every step is."""
    fluid.set_flags({"FLAGS_checkpoint_every_steps": 0})
    losses, _ = Job(model(60)).run(train)
    fluid.set_flags({"FLAGS_checkpoint_every_steps": 1})
    return np.array(losses)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("last", range(11))
def test_no_operation_of_a_save_ends_the_job(
    role: str,
    last: int,
    root: Path,  # noqa: F811
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(f"{ROLES[role]}.Disk", type("Full", (Full,), {"last": last}))
    before = tally.unsaved
    losses, _ = Job(model(60)).run(train)
    np.testing.assert_array_equal(np.array(losses), expected)
    assert tally.unsaved == before + 2  # both of the role
    told = "the checkpoint of step 2 was not saved: OSError: [Errno 28] No space left on device"
    assert caplog.text.count(told) == 2
    saved = newest_checkpoint(root)
    assert saved is not None
    assert saved.step == STEPS
    assert not list(root.glob(f"step-{BAD:012d}-*/.*/data"))  # what failed takes no room


def test_a_save_has_no_more_operations(
    root: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ROLES.values():
        monkeypatch.setattr(f"{module}.Disk", type("Full", (Full,), {"last": 11}))
    fluid.set_flags({"FLAGS_checkpoint_every_steps": 1})
    before = tally.unsaved
    Job(model(60)).run(train)
    assert tally.unsaved == before


def test_a_file_in_the_directory_s_place_is_waited_out(root: Path, expected: Any) -> None:  # noqa: F811
    root.rmdir()
    root.write_text("")
    before = tally.unsaved

    def body(trainer: Trainer) -> list[float]:
        losses = []
        for step in range(6):
            if trainer.number == 0 and step == 4:
                root.unlink()
            losses.append(trainer.step(feed(step, trainer.number)))
        return losses

    losses, _ = Job(model(60)).run(body)
    np.testing.assert_array_equal(np.array(losses)[:, :STEPS], expected)
    assert tally.unsaved >= before + 7  # a trainer that cannot save does not ask the servers to
    assert newest_step(root) == 6


def test_a_directory_that_vanishes_is_made_again(root: Path, expected: Any) -> None:  # noqa: F811
    def body(trainer: Trainer) -> list[float]:
        losses = []
        for step in range(6):
            if trainer.number == 0 and step == 2:
                shutil.rmtree(root, ignore_errors=True)
            losses.append(trainer.step(feed(step, trainer.number)))
        return losses

    losses, _ = Job(model(60)).run(body)
    np.testing.assert_array_equal(np.array(losses)[:, :STEPS], expected)
    assert newest_step(root) == 6


def test_old_checkpoints_that_cannot_be_removed_end_no_job(
    root: Path,  # noqa: F811
    expected: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(Disk):
        def rename(self, old: Path, new: Path) -> None:
            if new.name.startswith(".step-"):
                raise PermissionError(errno.EACCES, "Permission denied")
            super().rename(old, new)

    monkeypatch.setattr("bireme.trainer.checkpoints.Disk", Stuck)
    monkeypatch.setattr("bireme.io.checkpoint.Disk", Stuck)

    def patiently(trainer: Trainer) -> list[float]:
        losses = [trainer.step(feed(i, trainer.number)) for i in range(STEPS - 1)]
        until(lambda: newest_step(root) >= STEPS - 1)  # servers write in the background
        return [*losses, trainer.step(feed(STEPS - 1, trainer.number))]

    fluid.set_flags({"FLAGS_checkpoint_keep": 1})
    losses, _ = Job(model(60)).run(patiently)
    fluid.set_flags({"FLAGS_checkpoint_keep": 3})
    np.testing.assert_array_equal(np.array(losses), expected)
    assert "old checkpoints were not removed: PermissionError" in caplog.text
    assert newest_step(root) == STEPS


def test_failures_are_a_metric() -> None:
    books = Tally()
    names = {sample.name: sample.value for sample in books.samples()}
    assert names["bireme_checkpoint_failures_total"] == 0
    books.not_saved("the checkpoint of step 2", OSError(28, "No space left on device"))
    names = {sample.name: sample.value for sample in books.samples()}
    assert names["bireme_checkpoint_failures_total"] == 1
    assert "No space left" in books.last_error
