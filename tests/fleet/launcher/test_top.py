"""`bireme top`: rows from statuses, dead processes, a job found by itself, a screen that is plain
when nobody looks.
"""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.errors import ConfigError
from bireme.fleet.launcher import top
from bireme.fleet.launcher.child import Child
from bireme.fleet.launcher.job import Seat
from bireme.fleet.launcher.runner import LocalProcess
from bireme.fleet.telemetry.asking import named
from bireme.fleet.telemetry.job_file import JobFile, Process, read
from bireme.fleet.telemetry.snapshot import Observed, Status
from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from tests.support.processes import ignoring
from tests.support.terminal import Terminal
from tests.support.waiting import until

SERVER = {
    "role": "server",
    "index": 0,
    "ready": True,
    "step": 1234,
    "staleness": {"0": 1.0, "1": 3.0},
    "missing": [1],
    "waiting_seconds": 4.0,
    "rates": {"received_bytes_per_second": 2.5e6, "sent_bytes_per_second": 900},
}
TRAINER = {
    "role": "trainer",
    "index": 1,
    "ready": True,
    "step": 7,
    "loss": 0.5,
    "last_error": "PeerLost: server a is lost",
    "rates": {"samples_per_second": 5120.4, "wait_seconds": 0.0021},
}


def rows(*asked: tuple[Process, Any]) -> list[tuple[str, ...]]:
    return top.rows_of(
        [Observed(p, s and msgspec.convert(s, Status, strict=False)) for p, s in asked]
    )


def test_a_row_tells_what_a_process_does() -> None:
    server, trainer = Process("server", 0, admin="x"), Process("trainer", 1, admin="y")
    first, second = rows((server, SERVER), (trainer, TRAINER))
    assert first == (
        "server 0", "waits for trainer 1: 4 s", "1,234", "-", "-", "-", "2.0", "2.5 MB", "900 B",
        "",
    )  # fmt: skip
    assert second == (
        "trainer 1", "running", "7", "0.5000", "5,120", "2.1 ms", "3.0", "-", "-",
        "PeerLost: server a is lost",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("process", "word"),
    [
        (Process("trainer", 0, admin="x", exit_code=137), "exit 137"),
        (Process("trainer", 0, admin="x", exit_code=0), "done"),
        (Process("trainer", 0, admin="x"), "no answer"),
        (Process("trainer", 0), "starting"),
    ],
)
def test_a_process_that_does_not_answer_has_a_row_that_says_so(process: Process, word: str) -> None:
    assert rows((process, None))[0][1] == word


def test_a_job_file_says_again_only_what_is_new(tmp_path: Path) -> None:
    file = JobFile(tmp_path)
    file.tell([Process("server", 0, 11)])
    before = (tmp_path / "job.json").stat().st_ino
    file.tell([Process("server", 0, 11)])
    assert (tmp_path / "job.json").stat().st_ino == before
    file.tell([Process("server", 0, 11, "127.0.0.1:9", 1)])
    assert read(tmp_path) == (Process("server", 0, 11, "127.0.0.1:9", 1),)
    assert sorted(os.listdir(tmp_path)) == ["job.json", "prometheus.json"]


def test_prometheus_finds_the_processes_that_run(tmp_path: Path) -> None:
    ended = Process("trainer", 1, 12, "127.0.0.1:8", 0)
    JobFile(tmp_path).tell([Process("server", 0, 11, "127.0.0.1:9"), ended])
    found = json.loads((tmp_path / "prometheus.json").read_text())
    assert found == [{"targets": ["127.0.0.1:9"], "labels": {"process": "server 0"}}]


def test_without_a_job_the_message_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        read(tmp_path)


@pytest.fixture
def admin() -> Iterator[Admin]:
    books = Tally()
    books.enter("trainer", 1)
    books.step(8, 0.1)
    made = Admin("127.0.0.1", 0, books)
    yield made
    made.close()


@pytest.mark.wire
def test_ports_named_by_hand_tell_their_role_themselves(admin: Admin) -> None:
    out = io.StringIO()
    processes = named([admin.endpoint, "127.0.0.1:1"])
    top.show(lambda: processes, once=True, interval=0.1, out=out)
    _, alive, dead = out.getvalue().splitlines()
    assert alive.startswith("trainer 1 ")
    assert dead.split()[:3] == ["127.0.0.1:1", "no", "answer"]
    assert "\x1b" not in out.getvalue()


@pytest.mark.wire
def test_on_a_terminal_the_table_stays_in_place(admin: Admin, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bireme", "top", "--interval", "0.1", admin.endpoint]
    times: set[str] = set()
    with ignoring(signal.SIGINT):  # as a shell starts its background jobs
        terminal = Terminal(command, tmp_path)
    with terminal:
        while len(times) < 2:  # its title tells the time
            assert terminal.read()
            times |= {line for line in terminal.lines if line.startswith("bireme top")}
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.to_the_end() == 0
    title, head, row, *more = terminal.lines
    assert (title.split()[:2], head.split()[:2]) == (["bireme", "top"], ["process", "state"])
    assert (row.split()[:2], more) == (["trainer", "1"], [])
    assert terminal.cursor_is_visible


def test_what_a_process_says_of_its_port_is_no_progress(tmp_path: Path) -> None:
    start = partial(LocalProcess, ["-c", ""], dict(os.environ))
    child = Child(Seat("server", 0, "serverlog.0", {}), tmp_path, start)
    child._take({"admin": "127.0.0.1:7", "time": 1.0})
    assert (child.admin, child.figures) == ("127.0.0.1:7", {})
    child._take({"step": 3, "time": 2.0})
    assert (child.admin, child.figures["step"]) == ("127.0.0.1:7", 3.0)
    child.signal_group(signal.SIGKILL)
    child.reap()
    child.close()


SCRIPT = """
import os, time
import bireme as fluid
fluid.Executor(fluid.CPUPlace())
if os.environ.get("PADDLE_TRAINER_ID") == "1":
    os.kill(os.getpid(), 9)
time.sleep(60)  # until it is ended
"""


@pytest.mark.wire
def test_a_launched_job_is_found_by_itself_with_its_dead(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bireme = [sys.executable, "-m", "bireme"]
    words = [*bireme, "launch", "--servers", "1", "--grace", "30", "train.py"]
    job = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:

        def shown() -> bool:
            top = [*bireme, "top", "--once"]
            ran = subprocess.run(top, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            return "exit 137" in ran.stdout and "starting  " in ran.stdout

        until(shown)
        ports = [
            p["admin"] for p in json.loads((tmp_path / "log" / "job.json").read_text())["processes"]
        ]
    finally:
        job.terminate()
        job.wait(30)
    assert len(set(ports)) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)
