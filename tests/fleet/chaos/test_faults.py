"""Faults are done to other processes from outside; a schedule is what its seed says."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bireme.errors import ConfigError
from bireme.fleet.chaos import faults
from bireme.fleet.chaos.jobs import Size
from bireme.fleet.chaos.schedule import check_kinds, draw

CLIENT = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"here")
print(repr(line.recv(1)), flush=True)
"""


@pytest.fixture
def client() -> Iterator[tuple["subprocess.Popen[str]", socket.socket]]:
    """A process that waits for a byte, and this end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", CLIENT, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            near, _ = listener.accept()
            with near:
                near.settimeout(30)
                assert near.recv(4) == b"here"
                yield process, near
                process.kill()


def test_a_cut_ends_both_sides_of_a_connection(client) -> None:
    process, near = client
    faults.cut(process.pid)
    assert near.recv(1) == b""
    assert process.stdout.readline() == "b''\n"


def test_a_frozen_process_goes_on_where_it_was(client) -> None:
    process, near = client
    thaw = faults.stop(process.pid)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        pass
    near.sendall(b"x")
    thaw()
    assert process.stdout.readline() == "b'x'\n"


def test_a_slow_connection_is_paced_and_released(client) -> None:
    process, _ = client
    paces = []
    for act in (lambda: faults.slow(process.pid), faults.slow(process.pid)):
        act()
        for each in faults._connections(process.pid):
            with each:
                paces.append(each.getsockopt(socket.SOL_SOCKET, faults._SO_MAX_PACING_RATE))
    assert paces[0] == faults.RATE
    assert paces[-1] in (-1, faults._UNLIMITED)


def test_a_folder_refuses_writes_and_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "old").write_text("1")
    put_back = faults.refuse_writes(folder)
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        os.makedirs(folder / "new")
    put_back()
    assert (folder / "old").read_text() == "1"


def test_whoever_is_gone_can_be_hurt_no_more() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for act in (faults.kill, faults.stop, faults.cut, faults.slow):
        act(process.pid)()


def test_a_seed_draws_the_same_schedule_again() -> None:
    size = Size(2, 3)
    kinds = check_kinds("", checkpoints=True)
    first = draw(7, kinds, 50, 1000, size, 3.0)
    assert first == draw(7, kinds, 50, 1000, size, 3.0)
    assert first != draw(8, kinds, 50, 1000, size, 3.0)
    assert {event.kind for event in first} == set(faults.KINDS)
    assert all(0 < event.step < 1000 for event in first)
    assert max(event.seconds for event in first) == 5.0  # longer than the heartbeat
    roles = {(event.role, event.index) for event in first if event.role}
    assert roles == {("server", 0), ("server", 1), *(("trainer", i) for i in range(3))}


def test_an_all_reduce_job_has_no_servers_to_hurt() -> None:
    events = draw(1, check_kinds("kill,stop", False), 50, 100, Size(2, 2, "nccl2"), 3.0)
    assert {event.role for event in events} == {"trainer"}


def test_faults_that_a_job_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="no fault 'fire'"):
        check_kinds("kill,fire", checkpoints=True)
    with pytest.raises(ConfigError, match="FLAGS_checkpoint_dir"):
        check_kinds("disk", checkpoints=False)
    assert "disk" not in check_kinds("", checkpoints=False)
