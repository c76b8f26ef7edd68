"""The digits example in every role, end to end, as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.ports import Reservation

from .conftest import EXAMPLES

pytestmark = [pytest.mark.wire, pytest.mark.slow]

SCRIPT = str(EXAMPLES / "digits.py")
LAUNCH = ["-m", "bireme", "launch"]


def run(*arguments: str, folder: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def result(out: str) -> tuple[float, str]:
    """(test accuracy, hash of the parameters) that a run printed."""
    found = re.search(r"test accuracy: (\S+)\nparameters: (\w+)", out)
    assert found, out
    return float(found[1]), found[2]


def test_one_process_learns_the_digits(tmp_path: Path) -> None:
    ran = run(SCRIPT, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert result(ran.stdout)[0] >= 0.95


def test_two_servers_and_two_trainers_learn_them_the_same_way_twice(tmp_path: Path) -> None:
    command = [*LAUNCH, "--servers", "2", "--trainers", "2", SCRIPT, "--epochs", "8"]
    first, second = (run(*command, folder=tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert result(first.stdout)[0] >= 0.95
    assert result(first.stdout) == result(second.stdout)


def test_one_server_and_one_trainer_work(tmp_path: Path) -> None:
    ran = run(
        *LAUNCH, "--servers", "1", "--trainers", "1", SCRIPT, "--epochs", "8", folder=tmp_path
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert result(ran.stdout)[0] >= 0.95


def test_all_reduce_learns_them_without_a_server(tmp_path: Path) -> None:
    ran = run(*LAUNCH, "--mode", "nccl2", "--trainers", "2", SCRIPT, "--mode", "nccl2",
              "--epochs", "8", folder=tmp_path)  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert result(ran.stdout)[0] >= 0.95


def test_the_model_and_its_curve_are_saved(tmp_path: Path) -> None:
    ran = run(SCRIPT, "--epochs", "1", "--save", "out", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out" / "model").exists()
    assert list((tmp_path / "out").glob("curve.*"))


def test_a_taken_port_is_a_message_with_code_2(tmp_path: Path) -> None:
    with Reservation(1) as taken:
        (endpoint,) = taken.endpoints
        ran = run(SCRIPT, folder=tmp_path, TRAINING_ROLE="PSERVER", PADDLE_TRAINERS_NUM="1",
                  PADDLE_PSERVERS_IP_PORT_LIST=endpoint,
                  PADDLE_CURRENT_ENDPOINT=endpoint)  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert endpoint.split(":")[1] in ran.stderr
    assert "Traceback" not in ran.stderr
