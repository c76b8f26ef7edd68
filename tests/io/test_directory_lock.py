"""A directory of checkpoints has one owner, and the lock ends with its process."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import bireme as fluid
from bireme.errors import ConfigError
from bireme.fleet import checkpoint_reports
from bireme.io import directory_lock
from bireme.io.directory_lock import DirectoryLock

from .test_checkpoint import program, values


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DirectoryLock]:
    """The lock of another job's server 0."""
    lock = DirectoryLock(tmp_path, "server-0", "server h:1")
    lock.take()
    yield lock
    lock.release()


def test_the_owner_is_named(other: DirectoryLock, tmp_path: Path) -> None:
    other.take()  # it is this already
    with pytest.raises(ConfigError) as caught:
        DirectoryLock(tmp_path, "server-0", "server h:2").take()
    owner = f"server h:1, process {os.getpid()} on host {socket.gethostname()}"
    assert str(caught.value).startswith(f"checkpoint directory {tmp_path} belongs to {owner}\n")
    assert "give every job a directory of its own" in str(caught.value)


def test_the_servers_of_a_job_have_a_lock_each(other: DirectoryLock, tmp_path: Path) -> None:
    locks = [DirectoryLock(tmp_path, part, part) for part in ("server-1", "server-2")]
    for lock in locks:
        lock.take()
    for lock in locks:
        lock.release()


def test_an_owner_that_has_ended_in_order_leaves_nothing(
    other: DirectoryLock, tmp_path: Path
) -> None:
    other.release()
    other.release()
    assert not list(tmp_path.iterdir())
    other.take()


def test_an_owner_that_is_ending_is_waited_for(
    other: DirectoryLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: other.release())
    monkeypatch.setattr(directory_lock, "time", clock)
    successor = DirectoryLock(tmp_path, "server-0", "server h:1")
    successor.take(60.0, said.append)
    successor.release()
    (line,) = said
    assert line.startswith(f"{tmp_path} belongs to server h:1, process {os.getpid()}")


OWNER = """
import os, sys, time
from bireme.io.directory_lock import own
own(sys.argv[1], "server-0", "server h:1")
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print("owned", flush=True)
time.sleep(60)  # until it is killed
"""


def test_the_lock_ends_with_its_process_and_not_with_forks_of_it(tmp_path: Path) -> None:
    """The fork outlives its parent."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        with pytest.raises(ConfigError, match=f"server h:1, process {process.pid} on host"):
            DirectoryLock(tmp_path, "local", "another").take()
        process.kill()
        process.wait()
        lock = DirectoryLock(tmp_path, "local", "another")
        lock.take()
        lock.release()


def test_programs_and_prune_need_the_directory_and_readers_do_not(tmp_path: Path) -> None:
    fluid.io.save_checkpoint(tmp_path / "mine", program(), step=1, scope=values(1.0))
    (folder,) = (tmp_path / "mine").glob("step-*")
    folder.rename(tmp_path / folder.name)
    other = DirectoryLock(tmp_path, "server-0", "server h:1")
    other.take()
    with pytest.raises(ConfigError, match="belongs to server h:1"):
        fluid.io.save_checkpoint(tmp_path, program(), step=2, scope=values(1.0))
    with pytest.raises(ConfigError, match="belongs to server h:1"):
        checkpoint_reports.remove_old(tmp_path, 1, only_say=False)
    assert "nothing to remove" in checkpoint_reports.remove_old(tmp_path, 1, only_say=True)
    assert "complete" in checkpoint_reports.list_all(tmp_path)
    assert checkpoint_reports.verify(tmp_path)[1]
    other.release()


def test_a_process_may_save_and_prune_again_and_again(tmp_path: Path) -> None:
    for step in range(3):
        fluid.io.save_checkpoint(tmp_path, program(), step=step, scope=values(1.0))
    assert "removed" in checkpoint_reports.remove_old(tmp_path, 1, only_say=False)


def test_what_cannot_be_locked_is_said_and_ends_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    DirectoryLock(tmp_path / "file", "server-0", "server h:1").take()
    assert f"{tmp_path / 'file'} cannot be locked (File exists)" in caplog.text


def test_the_lock_of_another_user_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file can be opened for reading only, and in a foreign directory not be made."""
    other, mine = (DirectoryLock(tmp_path, "server-0", f"server h:{n}") for n in (1, 2))
    really = os.open

    def opened(path: Path, mode: int, permissions: int = 0o777) -> int:
        if mode & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return really(path, mode, permissions)

    other.take()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        with pytest.raises(ConfigError, match="belongs to server h:1"):
            mine.take()
        other.release()
        mine.take()
    assert f"{tmp_path} cannot be locked (Permission denied)" in caplog.text


def test_an_owner_without_a_name_is_refused_as_well(other: DirectoryLock, tmp_path: Path) -> None:
    for said in ("", "{}", json.dumps([1])):
        (tmp_path / ".owner").write_text(said)
        with pytest.raises(ConfigError, match="belongs to another process"):
            DirectoryLock(tmp_path, "server-0", "server h:2").take()


def test_an_object_store_has_no_locks() -> None:
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    for _ in range(2):
        DirectoryLock("memory://kept/locks", "server-0", "server h:1").take()


def test_a_lock_whose_directory_has_become_unusable_is_released(tmp_path: Path) -> None:
    root = tmp_path / "saved"
    lock = DirectoryLock(root, "server-0", "server a")
    lock.take()
    root.rename(tmp_path / "moved")
    root.touch()
    lock.release()
    after = DirectoryLock(tmp_path / "moved", "server-0", "server b")
    after.take()  # it is free
    after.release()
