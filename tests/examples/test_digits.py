"""The digits example in every role, end to end, as a user starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.fleet.launcher.ports import Reservation
from tests.support.thorough import only_thorough

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


def parameters(model: Path) -> dict[str, Any]:
    """The saved values of a model, by name."""
    exe = fluid.Executor(fluid.CPUPlace())
    program, _, _ = fluid.io.load_inference_model(str(model), exe)
    scope = fluid.global_scope()
    return {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in program.all_parameters()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process learns in two epochs."""
    folder = tmp_path_factory.mktemp("alone")
    ran = run(SCRIPT, "--epochs", "2", "--save", "alone", folder=folder)
    assert ran.returncode == 0, ran.stderr
    return parameters(folder / "alone" / "model")


@pytest.mark.parametrize(("mode", "trainers"), [("pserver", 2), ("nccl2", 2), ("nccl2", 4)])
def test_a_cluster_computes_what_one_process_computes_and_repeats_it(
    tmp_path: Path, alone: dict[str, Any], mode: str, trainers: int
) -> None:
    command = [*LAUNCH, "--mode", mode, "--trainers", str(trainers), SCRIPT, "--epochs", "2"]
    first, second = (run(*command, "--save", "model", folder=tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert result(first.stdout) == result(second.stdout)
    found = parameters(tmp_path / "model" / "model")
    assert alone.keys() == found.keys()
    for name, value in alone.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


def test_four_processes_started_by_hand_are_a_cluster(tmp_path: Path) -> None:
    with Reservation(2) as free:
        servers = free.endpoints
    shared = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(servers), "PADDLE_TRAINERS_NUM": "2"}
    roles = [{"TRAINING_ROLE": "PSERVER", "PADDLE_CURRENT_ENDPOINT": e} for e in servers]
    roles += [{"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)} for i in range(2)]
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, "--epochs", "2"],
            cwd=tmp_path,
            env={**os.environ, **shared, **role},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role in roles
    ]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0], outputs
    assert result(outputs[2])[0] > 0.8


def test_a_taken_port_is_a_message_with_code_2(tmp_path: Path) -> None:
    with Reservation(1) as taken:
        (endpoint,) = taken.endpoints
        ran = run(SCRIPT, folder=tmp_path, TRAINING_ROLE="PSERVER", PADDLE_TRAINERS_NUM="1",
                  PADDLE_PSERVERS_IP_PORT_LIST=endpoint,
                  PADDLE_CURRENT_ENDPOINT=endpoint)  # fmt: skip
    assert ran.returncode == 2, ran.stderr
    assert endpoint.split(":")[1] in ran.stderr
    assert "Traceback" not in ran.stderr


def accuracy_of(mode: str, epochs: int, folder: Path) -> float:
    """What a cluster reaches, as a user starts it."""
    options = ["--servers", "2", "--trainers", "2", SCRIPT, "--mode", mode]
    ran = run(*LAUNCH, *options, "--epochs", str(epochs), folder=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return result(ran.stdout)[0]


MODES = ["pserver", "async", "half_async", "geo"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns(tmp_path: Path, mode: str) -> None:
    assert accuracy_of(mode, 8, tmp_path) >= (0.95 if mode == "pserver" else 0.8)


@only_thorough
def test_every_mode_reaches_the_accuracy_of_sync(tmp_path: Path) -> None:
    """Within one point."""
    reached = {mode: accuracy_of(mode, 40, tmp_path) for mode in MODES}
    assert reached["pserver"] >= 0.97
    assert min(reached.values()) >= reached["pserver"] - 0.01, reached
