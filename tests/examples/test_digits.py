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


def parameters(model: Path) -> dict[str, Any]:
    """The saved values of a model, by name."""
    exe = fluid.Executor(fluid.CPUPlace())
    program, _, _ = fluid.io.load_inference_model(str(model), exe)
    scope = fluid.global_scope()
    return {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in program.all_parameters()}


@pytest.mark.parametrize(("mode", "trainers"), [("pserver", 2), ("nccl2", 2), ("nccl2", 4)])
def test_a_cluster_computes_what_one_process_computes(
    tmp_path: Path, mode: str, trainers: int
) -> None:
    options = [SCRIPT, "--epochs", "2", "--save"]
    alone = run(*options, "alone", folder=tmp_path)
    launch = [*LAUNCH, "--mode", mode, "--trainers", str(trainers)]
    together = run(*launch, *options, "together", folder=tmp_path)
    assert alone.returncode == together.returncode == 0, together.stdout + together.stderr
    expected, found = (parameters(tmp_path / name / "model") for name in ("alone", "together"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize("trainers", [2, 4])
def test_all_reduce_repeats_bit_for_bit(tmp_path: Path, trainers: int) -> None:
    launch = [*LAUNCH, "--mode", "nccl2", "--trainers", str(trainers)]
    first, second = (run(*launch, SCRIPT, "--epochs", "2", folder=tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stdout + first.stderr
    assert result(first.stdout) == result(second.stdout)


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


def test_every_mode_reaches_the_accuracy_of_sync(tmp_path: Path) -> None:
    """Within one point, as a user starts them."""
    reached = {}
    for mode in ("pserver", "async", "half_async", "geo"):
        command = [
            *LAUNCH,
            "--servers",
            "2",
            "--trainers",
            "2",
            SCRIPT,
            "--mode",
            mode,
            "--epochs",
            "40",
        ]
        ran = run(*command, folder=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        reached[mode] = result(ran.stdout)[0]
    assert reached["pserver"] >= 0.97
    assert min(reached.values()) >= reached["pserver"] - 0.01, reached
