"""Real servers are killed with SIGKILL and started again: the job ends as if nothing had been."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Job

pytestmark = [pytest.mark.wire, pytest.mark.slow]

MakeJob = Callable[..., Any]
STEPS, SAVED = 24, 7


def started(made: Any, folder: str, *more: str) -> dict[str, str]:
    """Start every role of a job that records its rounds; its environment."""
    env = {
        "FLAGS_checkpoint_dir": str(made.folder / folder),
        "FLAGS_checkpoint_every_steps": str(SAVED),
        "FLAGS_durability": "step",
    }
    for role in made.endpoints:
        made.start(role, **env)
    for trainer in range(made.trainers):
        out = str(made.folder / f"{trainer}.json")
        made.start(str(trainer), "--steps", str(STEPS), "--out", out, *more, **env)
    return env


def ended(made: Any) -> list[Any]:
    """What every trainer found; all processes must have ended well."""
    codes = {role: process.wait(60) for role, process in made.processes.items()}
    assert set(codes.values()) == {0}, {r: p.text for r, p in made.processes.items()}
    paths = [made.folder / f"{trainer}.json" for trainer in range(made.trainers)]
    return [json.loads(path.read_text()) for path in paths]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the trainers of a job find that nothing disturbs."""
    made = Job(tmp_path_factory.mktemp("whole"), 1, 2)
    try:
        started(made, "kept")
        return ended(made)
    finally:
        made.end()


def test_a_server_killed_again_and_again_loses_nothing(
    job: MakeJob, whole: list[Any], tmp_path: Path
) -> None:
    made = job(1, 2)
    env = started(made, "kept", "--pause", "0.02")
    for step in (3, 16):
        made.processes["1"].until(f"step {step}\n")
        made.kill(made.endpoints[0])
        made.start(made.endpoints[0], **env)
    assert ended(made) == whole
    assert not list((tmp_path / "kept" / "write-ahead").iterdir())  # an orderly end needs none


def test_a_job_that_begins_anew_does_not_go_on_with_the_record(
    job: MakeJob, whole: list[Any]
) -> None:
    made = job(1, 2)
    started(made, "kept", "--pause", "0.02")
    made.processes["1"].until("step 10\n")
    for role in list(made.processes):
        made.kill(role)
    started(made, "kept")
    for one, other in zip(ended(made), whole, strict=True):
        assert one["params"] == other["params"]
        assert one["losses"] == other["losses"][SAVED:]  # from the checkpoint, as its trainers
    said = made.processes[made.endpoints[0]].text
    assert "goes on after round" in said
    assert "the job has begun anew" in said


SCRIPT = """
import json, os, signal, sys
import numpy as np
import bireme as fluid

role = os.environ["TRAINING_ROLE"]
servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = 7
x, y = fluid.layers.data("x", [8]), fluid.layers.data("y", [1])
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
fluid.optimizer.Adam(0.01).minimize(loss)
transpiler = fluid.DistributeTranspiler()
trainer = int(os.environ.get("PADDLE_TRAINER_ID", 0))
transpiler.transpile(trainer, pservers=servers, trainers=2)
exe = fluid.Executor(fluid.CPUPlace())
if role == "PSERVER":
    main, startup = transpiler.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
    exe.run(startup)
    exe.run(main)
    sys.exit()
exe.run(fluid.default_startup_program())
losses = []
for step in range(12):
    if step in KILLED and trainer == 0:
        for each in json.load(open("log/job.json"))["processes"]:
            if each["role"] == "server":
                os.kill(each["pid"], signal.SIGKILL)
    random = np.random.default_rng((step, trainer))
    feed = {"x": random.normal(size=(4, 8)).astype("float32"), "y": np.ones((4, 1), "float32")}
    losses.append(float(exe.run(transpiler.get_trainer_program(), feed, [loss])[0][0]))
print("losses", losses)
exe.close()
"""


def test_the_launcher_restarts_a_killed_server_alone(tmp_path: Path) -> None:
    killed = (4, 8)
    (tmp_path / "script.py").write_text(SCRIPT.replace("KILLED", str(killed)))
    command = [sys.executable, "-m", "bireme", "launch", "--servers", "1", "--restart", "2"]
    environment = {"FLAGS_durability": "step", "FLAGS_checkpoint_dir": "kept"}
    done = subprocess.run(
        [*command, "script.py"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    logs = "".join(path.read_text() for path in (tmp_path / "log").glob("*log.*"))
    assert done.returncode == 0, done.stdout + logs
    said = [line for line in done.stdout.splitlines() if "restarting" in line]
    assert said == [
        f"server 0 was killed (exit code 137); restarting it alone ({number} of 2)"
        for number in (1, 2)
    ]
