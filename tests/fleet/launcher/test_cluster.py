"""The launcher with small scripts that need no server: ends, codes, logs, orphans."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.terminal import Terminal
from tests.support.waiting import until

pytestmark = pytest.mark.wire

Launch = Callable[..., "subprocess.Popen[str]"]

WAIT = """
import time
print("pid", os.getpid(), flush=True)
time.sleep(60)  # until the launcher ends it
"""


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Start `bireme launch` on a script whose text is given; role and index are at hand in it."""

    def start(body: str, *options: str, **environ: str) -> "subprocess.Popen[str]":
        head = "import os, sys\nrole = os.environ['TRAINING_ROLE']\n"
        head += "index = int(os.environ.get('PADDLE_TRAINER_ID', -1))\n"
        (tmp_path / "script.py").write_text(head + textwrap.dedent(body))
        command = [sys.executable, "-m", "bireme", "launch", "--log-dir", "logs", *options]
        return subprocess.Popen(
            [*command, "script.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environ},
        )

    return start


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, _ = process.communicate(timeout=60)
    return process.returncode, out


def pids(folder: Path, count: int) -> list[int]:
    """The numbers that the children wrote into their logs, once all have."""

    def reported() -> list[int]:
        try:
            texts = [log.read_text() for log in folder.glob("*log.*")]
        except FileNotFoundError:  # a log is being replaced by that of this job
            return []
        found = [int(text.split()[1]) for text in texts if text.endswith("\n")]
        return found if len(found) == count else []

    return until(reported)


def all_gone(numbers: list[int]) -> bool:
    """Wait until none of the processes is alive."""
    return until(lambda: not any(map(psutil.pid_exists, numbers)))


def test_success_is_exit_code_0_and_one_log_per_role(launch: Launch, tmp_path: Path) -> None:
    code, out = finish(launch("print(role, index)"))
    assert code == 0
    assert "TRAINER 0" in out
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == [
        "job.json",
        "prometheus.json",
        "record.jsonl",
        "serverlog.0",
        "serverlog.1",
        "trainerlog.0",
        "trainerlog.1",
    ]
    assert (tmp_path / "logs" / "trainerlog.1").read_text() == "TRAINER 1\n"


def test_the_first_failure_gives_the_exit_code_and_shows_its_log(launch: Launch) -> None:
    body = """
        import time
        if index == 1:
            print("something broke")
            sys.exit(7)
        print("still here")
        time.sleep(600)  # until the launcher ends it
    """
    code, out = finish(launch(body, "--grace", "0.5"))
    assert code == 7
    assert "trainer 1 failed with exit code 7" in out
    assert "  | something broke" in out
    assert "ended with it: server 0, server 1, trainer 0" in out


def test_a_killed_child_is_named_with_its_signal(launch: Launch) -> None:
    body = """
        import signal, time
        if role == "PSERVER":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)  # until the launcher ends it
    """
    code, out = finish(launch(body, "--servers", "1", "--grace", "0.5"))
    assert code == 128 + signal.SIGKILL
    assert "server 0 was killed (signal 9)\n" in out
    assert "\nlogs/serverlog.0 is empty" in out


def test_a_killed_process_comes_first_and_once_and_who_lost_it_in_one_line(launch: Launch) -> None:
    body = """
        import signal, sys, time
        from bireme.errors import PeerLost
        if (role, index) == ("TRAINER", 1):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1.0)  # later than the kill
        if (role, index) == ("TRAINER", 2):
            raise PeerLost("server 127.0.0.1:1 is lost", peer="server 127.0.0.1:1")
        raise PeerLost("trainer 1 is lost: its process has ended, at step 7", peer="trainer 1")
    """
    words = ["--servers", "2", "--trainers", "4", "--grace", "20"]
    code, out = finish(launch(SILENT + textwrap.dedent(body), *words))
    assert code == 128 + signal.SIGKILL
    lines = out.splitlines()
    verdict = lines.index("trainer 1 was killed (signal 9)")
    assert not [line for line in lines[:verdict] if "lost" in line]
    assert [line for line in lines if "PeerLost" in line] == [
        "trainer 2: PeerLost: server 127.0.0.1:1 is lost"
    ]
    assert lines.count("ended with it: server 0, server 1, trainer 0, trainer 3") == 1
    assert out.count("trainer 1 was killed") == 1


def test_servers_that_stay_are_ended_after_the_last_trainer(launch: Launch) -> None:
    body = """
        import time
        if role == "PSERVER":
            time.sleep(600)  # until the launcher ends it
    """
    code, out = finish(launch(body, "--grace", "0.5"))
    assert code == 0
    assert "ending server 0, server 1" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_child(launch: Launch, tmp_path: Path, number: signal.Signals) -> None:
    process = launch(WAIT)
    children = pids(tmp_path / "logs", 4)
    process.send_signal(number)
    code, _ = finish(process)
    assert code == 128 + number
    assert all_gone(children)


def test_a_child_that_ignores_sigterm_is_killed(launch: Launch, tmp_path: Path) -> None:
    process = launch("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + WAIT)
    children = pids(tmp_path / "logs", 4)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 128 + signal.SIGTERM
    assert all_gone(children)


def test_no_child_survives_kill_9_of_the_launcher(launch: Launch, tmp_path: Path) -> None:
    process = launch(WAIT)
    children = pids(tmp_path / "logs", 4)
    process.kill()
    finish(process)
    assert all_gone(children)


DAEMON = """
import subprocess, time
code = "import os, signal; os.fork() and os._exit(0); print('pid', os.getpid()); signal.pause()"
subprocess.run([sys.executable, "-u", "-c", code], start_new_session=True, env={})
time.sleep(SECONDS)  # until the launcher ends it
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_daemon_of_a_child_survives_the_launcher(
    launch: Launch, tmp_path: Path, number: signal.Signals
) -> None:
    process = launch(DAEMON.replace("SECONDS", "60"), "--servers", "1", "--trainers", "1")
    daemons = pids(tmp_path / "logs", 2)
    process.send_signal(number)
    finish(process)
    assert all_gone(daemons)


def test_what_a_child_started_ends_with_it(launch: Launch, tmp_path: Path) -> None:
    process = launch(DAEMON.replace("SECONDS", "0"), "--servers", "1", "--trainers", "1")
    daemons = pids(tmp_path / "logs", 2)
    assert finish(process)[0] == 0
    assert all_gone(daemons)


def test_a_process_that_is_killed_with_its_keeper_is_killed(launch: Launch, tmp_path: Path) -> None:
    process = launch(WAIT, "--servers", "1", "--trainers", "1", "--grace", "0.5")
    children = pids(tmp_path / "logs", 2)
    psutil.Process(children[0]).parent().kill()
    assert finish(process)[0] == 128 + signal.SIGKILL
    assert all_gone(children)


def test_reports_appear_in_the_table(launch: Launch) -> None:
    body = """
        from bireme.fleet.progress import report
        for step in range(1, 4):
            report(step=step, loss=0.5, accuracy=0.25, samples=64 * step)
    """
    code, out = finish(launch(body))
    row = next(line.split() for line in out.splitlines() if line.startswith("trainer 1 "))
    assert code == 0
    assert row[:6] == ["trainer", "1", "done", "3", "0.5000", "0.250"]


SILENT = """
import numpy as np, bireme as fluid
x = fluid.layers.data("x", [4])
loss = fluid.layers.mean(fluid.layers.fc(x, 1))
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
for step in range(40 if role == "TRAINER" else 0):
    exe.run(feed={"x": np.ones((8, 4), "float32")}, fetch_list=[loss])
"""


def test_a_script_that_reports_nothing_is_counted_and_drawn(launch: Launch, tmp_path: Path) -> None:
    code, out = finish(launch(SILENT))
    row = next(line.split() for line in out.splitlines() if line.startswith("trainer 1 "))
    assert code == 0
    assert row[2:4] == ["done", "40"]
    assert float(row[4]) < 0  # the loss
    assert "curves: logs/curves.svg" in out
    lines = (tmp_path / "logs" / "curves.trainer.0.csv").read_text().splitlines()
    assert lines[0] == "step,seconds,loss"
    assert [line.split(",")[0] for line in lines[1:]] == [str(i) for i in range(1, 41)]
    assert "trainer 1" in (tmp_path / "logs" / "curves.svg").read_text()
    last = subprocess.run(
        [sys.executable, "-m", "bireme", "top", "--once", "--log-dir", "logs"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30,
    ).stdout  # fmt: skip
    assert last.splitlines()[-1].split()[:4] == ["trainer", "1", "done", "40"]


def test_servers_that_trained_by_themselves_are_named(launch: Launch) -> None:
    body = SILENT.replace('40 if role == "TRAINER" else 0', "2")
    code, out = finish(launch(body, "--servers", "1", "--trainers", "1"))
    assert code == 0
    assert "server 0 trained alone: this was no cluster" in out


def test_who_was_told_to_end_is_no_cause(launch: Launch) -> None:
    body = SILENT.replace("40 if", "0 if") + textwrap.dedent("""
        import time
        if role == "PSERVER":
            raise ValueError("it broke")
        time.sleep(600)  # until the launcher ends it
    """)
    code, out = finish(launch(body, "--servers", "1", "--grace", "0.5"))
    assert code == 1
    assert out.count("ended with it: trainer 0, trainer 1") == 1
    assert "SIGTERM" not in out


def test_nobody_waits_for_long_after_a_mistake(launch: Launch) -> None:
    body = """
        import time
        if role == "PSERVER":
            raise SystemExit(2)
        time.sleep(300)  # until the launcher ends it
    """
    code, out = finish(launch(body, "--servers", "1", "--grace", "300"))
    assert code == 2
    assert "ended with it: trainer 0, trainer 1" in out


def test_the_cause_comes_before_its_effects_and_once(launch: Launch) -> None:
    body = SILENT + textwrap.dedent("""
        import time
        from bireme.errors import Aborted, PeerLost
        if index == 0:
            print("Aborted is next", flush=True)
            raise Aborted("trainer 1 gave up: ValueError: it broke", peer="trainer 1")
        if role == "PSERVER":
            raise PeerLost("a trainer is lost")
        time.sleep(1.0)  # the cause's process ends last
        raise ValueError("it broke")
    """)
    code, out = finish(launch(body, "--servers", "1", "--grace", "20"))
    assert code == 1
    assert out.count("ValueError: it broke") == 2  # what failed, and its traceback
    verdict = out.index("trainer 1 failed with exit code 1: ValueError: it broke")
    assert verdict < out.index("  | ValueError: it broke") < out.index("server 0: PeerLost")
    assert "ended with it: trainer 0" in out
    assert out.index("ended with it") < out.index("process    state")


def test_a_full_disk_of_logs_ends_no_job_and_is_said_once(launch: Launch, tmp_path: Path) -> None:
    body = """
        import resource
        if role == "TRAINER":
            print("kept")
            while not os.path.getsize(f"logs/trainerlog.{index}"):
                os.sched_yield()
            limit = (5, resource.RLIM_INFINITY)
            resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, limit)  # of the keeper
            print("lost")
            print("lost", file=sys.stderr)
            sys.exit(3 * index)
    """
    code, out = finish(launch(body, "--servers", "1", "--grace", "0.5"))
    assert code == 3
    assert "Traceback" not in out
    for i in range(2):
        log = f"logs/trainerlog.{i}"
        assert out.count(f"trainer {i}: its log {log} is cut: File too large; it continues\n") == 1
        assert (tmp_path / log).read_text() == "kept\n"


@pytest.mark.parametrize("missing", ["job.json", "record.jsonl", "curves.svg"])
def test_a_file_that_the_launcher_cannot_write_ends_no_job(
    launch: Launch, tmp_path: Path, missing: str
) -> None:
    (tmp_path / "logs" / missing).mkdir(parents=True)
    code, out = finish(launch(SILENT, "--servers", "1", "--trainers", "1"))
    assert code == 0
    assert "Traceback" not in out
    assert [line for line in out.splitlines() if "Is a directory" in line]


@pytest.mark.parametrize("taken", ["logs", "logs/trainerlog.1/folder"])
def test_logs_that_cannot_be_written_are_a_mistake_before_anything_starts(
    launch: Launch, tmp_path: Path, taken: str
) -> None:
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).touch()
    code, out = finish(launch("print(1)"))
    assert code == 2
    assert "Traceback" not in out
    assert out.startswith("bireme: ConfigError: cannot write logs: ")
    assert f"at {tmp_path / taken.removesuffix('/folder')}\n" in out


def test_the_job_continues_where_the_launcher_cannot_print(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('x' * 100000)")
    command = [sys.executable, "-m", "bireme", "launch", "--log-dir", "logs", "script.py"]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 0
    assert ran.stderr == (
        "bireme: the launcher's output ends here: No space left on device; the job continues\n"
    )
    assert len((tmp_path / "logs" / "trainerlog.1").read_text()) == 100001


def test_on_a_terminal_the_table_stays_in_place(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import time\nfrom bireme.fleet.progress import report\n"
        "for step in range(6):\n"
        "    report(step=step, loss=0.5)\n    print('line', step)\n"
        "    time.sleep(0.2)\n"  # the table is drawn anew between lines
        "print('the end', end='')"
    )
    command = [sys.executable, "-m", "bireme", "launch", "--log-dir", "logs", "script.py"]
    with Terminal(command, tmp_path) as terminal:
        assert terminal.to_the_end() == 0
    lines = terminal.lines
    assert not terminal.has_scrolled
    assert terminal.cursor_is_visible
    assert [line.partition(":")[0] for line in lines[:4]] == [
        "server 0", "server 1", "trainer 0", "trainer 1",
    ]  # fmt: skip
    assert lines[4:11] == [*(f"line {step}" for step in range(6)), "the end"]
    assert [line.split() for line in lines[11:]] == [
        ["process", "state", "step", "loss", "samples/s", "left"],
        *(
            [role, i, "done", "5", "0.5000", "-", "-"]
            for role in ("server", "trainer")
            for i in "01"
        ),
    ]


def test_all_reduce_mode_starts_workers_only(launch: Launch, tmp_path: Path) -> None:
    code, _ = finish(launch("print(os.environ['PADDLE_TRAINER_ENDPOINTS'])", "--mode", "nccl2"))
    assert code == 0
    logs = sorted((tmp_path / "logs").glob("*log.*"))
    assert [log.name for log in logs] == ["workerlog.0", "workerlog.1"]
    assert len({log.read_text() for log in logs}) == 1


def test_a_user_mistake_is_a_message_with_code_2(launch: Launch) -> None:
    code, out = finish(launch("pass", "--trainers", "0"))
    assert code == 2
    assert "a cluster needs at least one" in out
    assert "Traceback" not in out


def test_a_script_sees_what_python_would_show_it(launch: Launch, tmp_path: Path) -> None:
    body = """
        assert __name__ == "__main__"
        assert sys.argv == ["script.py"]
        assert sys.path[0] == os.getcwd()
        assert sys.modules["__main__"].__file__ == __file__
    """
    code, out = finish(launch(body, "--servers", "1", "--trainers", "1"))
    assert code == 0, out
