"""FLAGS_log_json: every line of a process is an object of JSON, and launchers read them as text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.log_lines import texts_of
from bireme.fleet.log_relay import as_json

SCRIPT = """
import logging, sys
print("one", "line")
print("in", end=" ")
print("parts\\nand two\\n")
logging.getLogger("mine").warning("take care")
sys.stderr.write("no end")
sys.stdout.flush()
raise ValueError("the end")
"""


TRAINER_3 = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "3"}


@pytest.mark.wire
def test_everything_that_is_printed_is_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "FLAGS_log_json": "1", **TRAINER_3},
    )  # fmt: skip
    assert ran.returncode == 1
    out = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["message"] for row in out] == ["one line", "in parts", "and two", ""]
    assert {(r["role"], r["index"], r["level"]) for r in out} == {("trainer", 3, "info")}
    err = [json.loads(line) for line in ran.stderr.splitlines()]
    logged, failed = err[0], next(row for row in err if row["level"] == "error")
    assert (logged["level"], logged["logger"], logged["message"]) == (
        "warning", "mine", "take care",
    )  # fmt: skip
    assert failed["error"] == "ValueError"
    assert failed["message"].splitlines()[-1] == "ValueError: the end"
    assert "train.py" in failed["message"]  # the whole traceback is one line
    assert "no end" in {row["message"] for row in err}


@pytest.mark.wire
def test_an_error_of_ours_is_one_line(tmp_path: Path) -> None:
    """It is printed before the peers are told."""
    (tmp_path / "train.py").write_text(
        "from bireme import errors\n"
        "from bireme.ending import at_exit\n"
        "at_exit(lambda error: print('told'))\n"
        "raise errors.PeerLost('server 1 is lost', peer='server 1', step=7)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "FLAGS_log_json": "1"},
    )  # fmt: skip
    failed, told = (json.loads(line) for line in ran.stdout.splitlines())
    assert (failed["level"], failed["error"], told["message"]) == ("error", "PeerLost", "told")
    assert failed["message"] == "bireme: PeerLost: server 1 is lost\n  server 1, step 7"


@pytest.mark.wire
def test_a_signal_reaches_the_script_behind_the_relay(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))\n"
        "print('ready')\n"
        "sys.stdout.flush()\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, env={**os.environ, "FLAGS_log_json": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["message"], ready["pid"] == process.pid) == ("ready", False)
        process.terminate()
        assert process.wait(30) == 3


@pytest.mark.wire
def test_lines_of_a_launched_process_are_json_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('one'); os.system('echo two')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "launch", "--servers", "0", "--mode", "nccl2", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "FLAGS_log_json": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "\none\ntwo\n" in ran.stdout  # of trainer 0, as text
    lines = (tmp_path / "log" / "workerlog.1").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(row["role"], row["index"], row["message"]) for row in found] == [
        ("trainer", 1, "one"),
        ("trainer", 1, "two"),
    ]


def test_logs_are_read_as_text_again() -> None:
    lines = [as_json(0.0, "a\nb", level="info"), "plain", '{"time": "broken', as_json(1.5, "")]
    assert list(texts_of(lines)) == ["a", "b", "plain", '{"time": "broken', ""]
    assert json.loads(lines[-1])["time"] == "1970-01-01T00:00:01.500Z"
