"""FLAGS_log_json: every line of a process is an object of JSON, and launchers read them as text."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.log_lines import as_json, texts_of

SCRIPT = """
import logging, sys
from bireme.monitoring.counters import tally
tally.enter("trainer", 3)
print("one", "line")
print("in", end=" ")
print("parts\\nand two\\n")
logging.getLogger("mine").warning("take care")
sys.stderr.write("no end")
sys.stdout.flush()
raise ValueError("the end")
"""


@pytest.mark.wire
def test_everything_that_is_printed_is_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, "FLAGS_log_json": "1"},
    )  # fmt: skip
    assert ran.returncode == 1
    out = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["message"] for row in out] == ["one line", "in parts", "and two", ""]
    assert {(r["role"], r["index"], r["stream"], r["level"]) for r in out} == {
        ("trainer", 3, "stdout", "info")
    }
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


def test_logs_are_read_as_text_again() -> None:
    lines = [as_json(0.0, "a\nb", level="info"), "plain", '{"time": "broken', as_json(1.5, "")]
    assert list(texts_of(lines)) == ["a", "b", "plain", '{"time": "broken', ""]
    assert json.loads(lines[-1])["time"] == "1970-01-01T00:00:01.500Z"
