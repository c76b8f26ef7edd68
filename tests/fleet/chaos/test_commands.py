"""`bireme verify SCRIPT` and `bireme chaos` on small jobs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wire

JOB = """
import os, sys
import numpy as np
import bireme as fluid
from bireme.fleet.role_maker import Role

role = Role.from_env()
x = fluid.layers.data("x", shape=[64], dtype="float32")
hidden = fluid.layers.fc(x, size=300, act="tanh")
loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(hidden, size=1) - 1.0))
rate = 0.01 if role.kind == "local" else float(sys.argv[1])
fluid.optimizer.SGD(rate).minimize(loss)
program, startup = fluid.default_main_program(), fluid.default_startup_program()
if role.kind != "local":
    t = fluid.DistributeTranspiler()
    t.transpile(role.trainer_id, pservers=",".join(role.servers), trainers=role.trainers)
    if role.is_server:
        program, startup = t.get_pserver_programs(role.endpoint)
    else:
        program = t.get_trainer_program()
exe = fluid.Executor(fluid.CPUPlace())
exe.run(startup)
begin, kept = 0, os.environ.get("FLAGS_checkpoint_dir")
if role.is_server:
    exe.run(program)
else:
    if kept:
        begin = fluid.io.load_checkpoint(kept, program, trainer=role.trainer_id) or 0
    for step in range(begin, 60):
        random = np.random.RandomState(100 * step + role.trainer_id)
        exe.run(program, feed={"x": random.standard_normal((8, 64)).astype("float32")})
exe.close()
"""


def bireme(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    (folder / "train.py").write_text(JOB)
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "TMPDIR": str(folder), **env},
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_a_cluster_that_learns_the_same_is_verified(tmp_path: Path) -> None:
    code, said = bireme(tmp_path, "verify", "train.py", "--servers", "1", "--steps", "3", "0.01")
    assert code == 0, said
    assert "equal but for rounding: 4 parameters, 3 steps" in said
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_cluster_that_learns_otherwise_is_found_with_its_first_step(tmp_path: Path) -> None:
    words = ("--servers", "1", "--trainers", "1", "--steps", "3")
    code, said = bireme(tmp_path, "verify", *words, "train.py", "--", "0.02")
    assert code == 1, said
    assert "4 of 4 parameters differ, the first at step 1" in said


def test_a_job_survives_cuts_kills_and_a_bad_disk_with_the_same_bits(tmp_path: Path) -> None:
    """The short form of `make soak`."""
    words = (
        "chaos",
        "train.py",
        "--seed",
        "3",
        "--count",
        "3",
        "--servers",
        "1",
        "--trainers",
        "1",
        "0.01",
    )
    env = {"FLAGS_checkpoint_dir": "x", "FLAGS_checkpoint_every_steps": "10"}
    env["FLAGS_heartbeat_seconds"] = "30"  # busy machines are no fault
    code, said = bireme(tmp_path, *words, "--faults", "kill,cut,disk", **env)
    assert code == 0, said
    assert "the same 4 parameters, bit for bit" in said
    assert "processes restarted alone: 1, the job: 0" in said
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
