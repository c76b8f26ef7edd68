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


def recording(made: Any, folder: str, **flags: str) -> dict[str, str]:
    """The environment of a job that records its rounds."""
    return {
        "FLAGS_checkpoint_dir": str(made.folder / folder),
        "FLAGS_checkpoint_every_steps": str(SAVED),
        "FLAGS_durability": "step",
        **flags,
    }


def begin_training(made: Any, env: dict[str, str], *more: str) -> None:
    for trainer in range(made.trainers):
        out = str(made.folder / f"{trainer}.json")
        made.start(str(trainer), "--steps", str(STEPS), "--out", out, *more, **env)


def started(made: Any, folder: str, *more: str, **flags: str) -> dict[str, str]:
    """Start every role of a job that records its rounds; its environment."""
    env = recording(made, folder, **flags)
    for role in made.endpoints:
        made.start(role, **env)
    begin_training(made, env, *more)
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


def test_a_trainer_killed_again_and_again_goes_on(
    job: MakeJob, whole: list[Any], tmp_path: Path
) -> None:
    """Without a launcher: the test starts the successor, as a scheduler would."""
    trainer = "0"  # also trainer 1: the launcher's test below
    made = job(2, 2)
    env = started(made, "kept", "--pause", "0.02")
    other = made.processes["1"]
    for step in (3, 16):
        other.until(f"step {step}\n")
        made.kill(trainer)
        out = str(tmp_path / f"{trainer}.json")
        made.start(trainer, "--steps", str(STEPS), "--out", out, "--pause", "0.02", **env)
    for one, expected in zip(ended(made), whole, strict=True):
        assert one["params"] == expected["params"]
        assert one["losses"] == expected["losses"][-len(one["losses"]) :]
    assert "goes on with step" in made.processes[trainer].text
    assert not list((tmp_path / "kept" / "write-ahead").iterdir())


@pytest.mark.parametrize("killed", ["0", "last server"])
def test_survivors_go_back_to_the_newest_checkpoint(
    killed: str, job: MakeJob, whole: list[Any], tmp_path: Path
) -> None:
    """Without a launcher, and without records: the test starts all processes again when the exit
    codes of the survivors ask for it.
    """
    made = job(2, 2)
    more = {"FLAGS_durability": "checkpoint", "FLAGS_rewind": "2", "FLAGS_heartbeat_seconds": "20"}
    env = started(made, "kept", "--pause", "0.05", **more)
    servers = {"first server": made.endpoints[0], "last server": made.endpoints[1]}
    lost = servers.get(killed, killed)
    made.processes["1" if lost == "0" else "0"].until("step 10\n")

    def start(role: str, **more: str) -> None:
        given = [] if role in made.endpoints else ["--out", str(tmp_path / f"{role}.json")]
        made.start(role, "--steps", str(STEPS), "--pause", "0.05", *given, **env, **more)

    made.kill(lost)
    survivors = dict(made.processes)
    for process in survivors.values():
        assert process.wait(60) == 75, process.text
        assert process.text.count("going back to the newest checkpoint (1 of 2)") == 1
    start(lost)
    for role in survivors:
        start(role, BIREME_REWINDS="1")
    for one, expected in zip(ended(made), whole, strict=True):
        assert one["params"] == expected["params"]
        assert one["losses"] == expected["losses"][-len(one["losses"]) :]
        assert len(one["losses"]) in (STEPS - SAVED, STEPS)


def test_a_second_job_over_a_directory_is_refused(
    job: MakeJob, whole: list[Any], tmp_path: Path
) -> None:
    """The first loses nothing by it, also if its server is killed after that."""
    made, other = job(1, 2), job(1, 2)
    env = recording(made, "kept")
    server = made.start(made.endpoints[0], **env)
    server.until("serves 2 trainer(s)")
    second = other.start_run(other.endpoints[0], **env, FLAGS_heartbeat_seconds="1")
    assert second.wait() == 2, second.text
    owner = f"belongs to server {made.endpoints[0]}, process {server.popen.pid} on host"
    assert f"checkpoint directory {tmp_path / 'kept'} {owner}" in second.text
    begin_training(made, env, "--pause", "0.02")
    made.processes["1"].until("step 16\n")
    made.kill(made.endpoints[0])
    made.start(made.endpoints[0], **env)
    assert ended(made) == whole
    assert not list((tmp_path / "kept").glob(".owner"))


def test_a_job_that_begins_anew_does_not_go_on_with_the_record(job: MakeJob) -> None:
    made = job(1, 2)
    started(made, "whole", "--decay")
    whole = ended(made)
    started(made, "kept", "--decay", "--pause", "0.02")
    made.processes["1"].until("step 10\n")
    for role in list(made.processes):
        made.kill(role)
    started(made, "kept", "--decay")
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
hidden = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc(x, 4)), 0.3)
loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
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

def kill(name):
    try:
        os.mkdir(f"killed {name}")
    except FileExistsError:
        return
    for each in json.load(open("log/job.json"))["processes"]:
        if f"{each['role']} {each['index']}" == name:
            os.kill(each["pid"], signal.SIGKILL)

exe.run(fluid.default_startup_program())
program = transpiler.get_trainer_program()
begin = fluid.io.load_checkpoint("kept", program, trainer=trainer) or 0
for step in range(begin, 12):
    for name in KILLED.get((trainer, step), ()):
        kill(name)
    random = np.random.default_rng((step, trainer))
    feed = {"x": random.normal(size=(4, 8)).astype("float32"), "y": np.ones((4, 1), "float32")}
    print("loss", step, float(exe.run(program, feed, [loss])[0][0]), flush=True)
persistable = sorted(v.name for v in program.list_vars() if v.persistable)
cells = [(name, fluid.global_scope().find_var(name)) for name in persistable]
held = [(name, np.array(c.get_tensor()).tolist()) for name, c in cells if c and "block" not in name]
print("held", held)
exe.close()
"""


def launched(folder: Path, killed: dict[tuple[int, int], tuple[str, ...]], **more: str) -> Any:
    """What the launcher said of restarts, and what the trainers said last of each thing."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT.replace("KILLED", str(killed)))
    options = ["--servers", "2", "--restart", str(max(1, len(killed)))]
    done = subprocess.run(
        [sys.executable, "-m", "bireme", "launch", *options, "script.py"],
        cwd=folder,
        env={**os.environ, "FLAGS_checkpoint_dir": "kept", **more},
        capture_output=True,
        text=True,
        timeout=200,
    )
    logs = {path.name: path.read_text() for path in (folder / "log").glob("*log.*")}
    assert done.returncode == 0, done.stdout + "".join(logs.values())
    found = {}
    for name in ("trainerlog.0", "trainerlog.1"):
        lines = [line.split() for line in logs[name].splitlines()]
        found[name] = {line[1]: line[2:] for line in lines if line[0] == "loss"}
        found[name]["held"] = next(line for line in lines if line[0] == "held")
    return [line for line in done.stdout.splitlines() if "restarting" in line], found


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launched(tmp_path_factory.mktemp("launched") / "job", {})


def test_the_launcher_restarts_a_killed_process_alone(tmp_path: Path, unkilled: Any) -> None:
    killed = {
        (0, 2): ("trainer 1",),
        (0, 4): ("trainer 0",),
        (0, 6): ("server 0",),
        (1, 9): ("server 1",),
    }
    said, found = launched(tmp_path / "job", killed, FLAGS_durability="step")
    names = [name for each in killed.values() for name in each]
    assert said == [
        f"{name} was killed (exit code 137); restarting it alone ({number} of 4)"
        for number, name in enumerate(names, 1)
    ]
    for name, expected in unkilled[1].items():
        assert found[name] == {key: expected[key] for key in found[name]}
        assert len(found[name]) > len(expected) - 2  # the loss of the step that was killed


def test_without_records_the_others_go_back_with_it(tmp_path: Path, unkilled: Any) -> None:
    killed = {(0, 5): ("trainer 1",), (1, 8): ("server 0",), (0, 11): ("trainer 0",)}
    said, found = launched(tmp_path / "job", killed, FLAGS_checkpoint_every_steps="3")
    names = [name for each in killed.values() for name in each]
    assert said == [
        f"{name} was killed (exit code 137); restarting it alone ({number} of 3)"
        for number, name in enumerate(names, 1)
    ]
    for name, expected in unkilled[1].items():
        assert found[name] == {key: expected[key] for key in found[name]}
