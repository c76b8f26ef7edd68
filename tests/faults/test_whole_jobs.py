"""A few of the cases of `make faults`, and the results that it writes."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from . import links
from .__main__ import RESULTS, catalogue

pytestmark = pytest.mark.wire

ROOT = Path(__file__).parent.parent.parent
SAMPLE = [  # each role, action and kind of point; each mode
    "kill/sync/server-1/applying",
    "freeze/async/trainer-0",
    "kill/dc-asgd/trainer-1/awaiting",
    "kill/half-async/trainer-0",
    "freeze/communicator/server-1/answered",
    "kill/geo/trainer-1/saving",
    "kill/nccl2/trainer-0",
    "freeze/nccl2/trainer-1/reducing",
]


def said(*words: str) -> str:
    """The last line of `python -m WORDS`."""
    command = [sys.executable, "-m", *words, "--jobs", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()[-1]


def test_whole_jobs_end_and_leave_nothing() -> None:
    """Each is named by all others, on busy machines too; in what time is no matter here."""
    assert said("tests.faults", *SAMPLE, "--heartbeat", "6").startswith(f"{len(SAMPLE)} cases, 0 ")


def test_a_job_that_is_killed_and_resumed_learns_the_same() -> None:
    """Seeds with a kill of one, of all and inside a save; with changing numbers of servers."""
    assert said("tests.faults.resuming", "--rounds", "2", "--seed", "2").startswith("2 rounds, 0 ")


def test_a_name_of_no_case_is_an_error() -> None:
    command = [sys.executable, "-m", "tests.faults", "kill/nobody"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "no case begins with 'kill/nobody'" in ran.stderr


def test_a_reset_link_ends_no_job(tmp_path: Path) -> None:
    if why := links.missing():
        pytest.skip(why)
    assert replace(links.LinkCase("reset"), heartbeat=30.0).run(tmp_path).problems == []


def test_the_results_have_a_line_for_every_case() -> None:
    """Write them with `make faults`."""
    names = re.findall(r"^(\S+/\S+)  ", RESULTS.read_text(), re.MULTILINE)
    assert names == [case.name for case in catalogue()]
