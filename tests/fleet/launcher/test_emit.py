"""The same job as a manifest or a batch script: valid by the published schemas, and it runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from bireme.errors import ConfigError
from bireme.fleet.cli import main
from bireme.fleet.launcher.emit import emit
from bireme.fleet.launcher.job import Job
from bireme.fleet.role_maker import Role

SCRIPT = """
import os, sys
from bireme.fleet.role_maker import Role
role = Role.from_env()
print(role.kind, role.server_index if role.is_server else role.trainer_id, role.trainers,
      os.environ["TRAINING_ROLE"], len(role.servers), len(role.trainer_endpoints), *sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Train_it.py").write_text(SCRIPT)
    return "Train_it.py"


def documents(job: Job) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(emit("kubernetes", job, image="registry/train:1")))


def pods(document: dict[str, Any]) -> list[dict[str, str]]:
    """The environment of each pod of an Indexed Job, as the cluster fills it in."""
    (container,) = document["spec"]["template"]["spec"]["containers"]
    found = []
    for index in range(document["spec"]["completions"]):
        values: dict[str, str] = {"JOB_COMPLETION_INDEX": str(index), "POD_IP": f"10.0.0.{index}"}
        for entry in container["env"]:
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            value = entry.get("value", str(index) if "completion-index" in field else "secret")
            for name, known in values.items():
                value = value.replace(f"$({name})", known)
            values[entry["name"]] = value
        found.append(values)
    return found


@pytest.mark.parametrize("options", [{}, {"mode": "nccl2", "gpus": ("0", "1")}, {"restart": 3}])
def test_a_manifest_is_valid_by_the_schemas_of_kubernetes(
    script: str, options: dict[str, Any]
) -> None:
    made = documents(Job(script, ("--rate", '0.1 "x"'), **options))
    for document in made:
        kubernetes_validate.validate(document, "1.29", strict=True)
    kinds = [document["kind"] for document in made]
    assert kinds == ["Service", *["Job"] * (1 if "mode" in options else 2)]
    command = made[-1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command == ["bireme", "run", script, "--rate", '0.1 "x"']


def test_every_pod_knows_its_role(script: str) -> None:
    service, servers, trainers = documents(Job(script, servers=3, trainers=2))
    name = service["metadata"]["name"]
    assert name == "train-it"
    endpoints = tuple(f"{name}-server-{i}.{name}:6174" for i in range(3))
    for index, environ in enumerate(pods(servers)):
        environ.pop("POD_IP")
        role = Role.read(environ)
        assert (role.servers, role.endpoint, role.trainers) == (endpoints, endpoints[index], 2)
    for index, environ in enumerate(pods(trainers)):
        role = Role.read(environ)
        assert (role.kind, role.trainer_id, role.servers) == ("trainer", index, endpoints)


def test_every_rank_of_an_all_reduce_job_knows_its_place(script: str) -> None:
    _, trainers = documents(Job(script, trainers=2, mode="nccl2"))
    roles = [Role.read_collective(environ) for environ in pods(trainers)]
    assert [role.trainer_id for role in roles] == [0, 1]
    assert roles[0].trainer_endpoints == roles[1].trainer_endpoints
    assert [role.endpoint for role in roles] == list(roles[0].trainer_endpoints)


def test_pods_that_lose_one_are_started_again_with_it(script: str) -> None:
    """Each of them counts as failed."""
    _, *jobs = documents(Job(script, servers=2, trainers=3, restart=4))
    for job in jobs:
        assert job["spec"]["backoffLimit"] == 4 * job["spec"]["completions"]
        assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"  # its index stays
        assert {environ["FLAGS_rewind"] for environ in pods(job)} == {"4"}
    for job in documents(Job(script))[1:]:
        assert job["spec"]["backoffLimit"] == 0
        assert all("FLAGS_rewind" not in environ for environ in pods(job))


@pytest.mark.parametrize("options", [{}, {"restart": 3}, {"mode": "nccl2", "restart": 3}])
def test_a_pod_that_ends_with_a_mistake_ends_its_job(script: str, options: dict[str, Any]) -> None:
    for job in documents(Job(script, **options))[1:]:
        (rule,) = job["spec"]["podFailurePolicy"]["rules"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        codes = {"containerName": container["name"], "operator": "In", "values": [2]}
        assert rule == {"action": "FailJob", "onExitCodes": codes}


def test_ranks_of_an_all_reduce_job_are_all_started_again(script: str) -> None:
    """The others end with the one that is killed, and each of them counts as failed."""
    job = Job(script, trainers=3, mode="nccl2", restart=4)
    _, ranks = documents(job)
    assert ranks["spec"]["backoffLimit"] == 12
    assert "FLAGS_rewind" not in emit("kubernetes", job, image="i:1") + emit("slurm", job)


SRUN = """#!/usr/bin/env bash
# what srun does, on one node: a process for each task, the exit code of one that failed
while [[ "$1" == --* ]]; do shift; done
codes=0; pids=()
for i in $(seq 0 $((NTASKS - 1))); do
    SLURM_JOB_ID=$PPID \\
        SLURM_PROCID=$i SLURM_NTASKS=$NTASKS SLURM_STEP_NUM_TASKS=$NTASKS SLURM_NODEID=0 \\
        SLURM_STEP_NODELIST=localhost SLURM_STEP_TASKS_PER_NODE=$NTASKS "$@" & pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || codes=$?; done
exit $codes
"""


SCANCEL = """#!/usr/bin/env bash
[ "$*" = "--batch --signal=USR1 $SLURM_JOB_ID" ] && kill -USR1 "$SLURM_JOB_ID"
"""


def ran(job: Job, folder: Path, *words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """A batch script as it runs where srun is ours."""
    text = text or emit("slurm", job)
    tasks = next(line for line in text.splitlines() if line.startswith("#SBATCH --ntasks="))
    for name, script in (("srun", SRUN), ("scancel", SCANCEL)):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environ = {"PATH": path, "NTASKS": tasks.partition("=")[2]}
    return subprocess.run(
        ["bash", *words], input=text, cwd=folder, env=environ, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


@pytest.mark.wire
def test_a_batch_script_makes_one_task_of_each_process(script: str, tmp_path: Path) -> None:
    done = ran(Job(script, ("{role}", "{index}", "a b"), servers=1, trainers=2), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "server 0 2 PSERVER 1 2 pserver 0 a b",
        "trainer 0 2 TRAINER 1 2 trainer 0 a b",
        "trainer 1 2 TRAINER 1 2 trainer 1 a b",
    ]


@pytest.mark.wire
def test_a_batch_script_begins_again_as_often_as_it_may(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys\nprint(os.environ['BIREME_RESTART_COUNT'], flush=True)\nsys.exit(3)\n"
    )
    job = Job(str(tmp_path / "fails.py"), trainers=1, mode="nccl2", restart=1)
    done = ran(job, tmp_path)
    assert (done.returncode, done.stdout.split()) == (3, ["0", "1"])


@pytest.mark.wire
@pytest.mark.parametrize("options", [{"servers": 1, "trainers": 1}, {"mode": "nccl2"}])
def test_a_batch_script_does_not_repeat_a_mistake(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, signal\nprint('try', flush=True)\n"
        "if os.environ['SLURM_PROCID'] == '1':\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(2)\n"
    )
    done = ran(Job(str(tmp_path / "fails.py"), restart=2, **options), tmp_path)
    assert (done.returncode, done.stdout.split()) == (2, ["try", "try"])
    assert "not restarted: exit code 2 means a mistake" in done.stderr


@pytest.mark.wire
def test_a_killed_task_alone_begins_again(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, pathlib, signal\n"
        "rank = os.environ['SLURM_PROCID']\n"
        "first = not pathlib.Path(rank).exists()\n"
        "pathlib.Path(rank).touch()\n"
        "print(rank, os.environ['FLAGS_rewind'], flush=True)\n"
        "if first and rank == '1':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = ran(Job(str(tmp_path / "dies.py"), servers=1, trainers=1, restart=2), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2", "1 2"]


@pytest.mark.wire
@pytest.mark.parametrize(("times", "code"), [(2, 0), (3, 75)])
def test_a_task_that_asks_to_be_started_again_is_so_often(
    tmp_path: Path, times: int, code: int
) -> None:
    (tmp_path / "asks.py").write_text(
        "import os\n"
        "back = int(os.environ['BIREME_REWINDS'])\n"
        "if os.environ['SLURM_PROCID'] == '1':\n"
        "    print('back', back, flush=True)\n"
        f"    raise SystemExit(75 if back < {times} else 0)\n"
    )
    job = Job(str(tmp_path / "asks.py"), servers=1, trainers=1, restart=2)
    text = emit("slurm", job).replace("seq 0 2", "seq 0 0")  # without repeating the step
    done = ran(job, tmp_path, text=text)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["back 0", "back 1", "back 2"]


@pytest.mark.parametrize(
    "options", [{}, {"restart": 2}, {"gpus": ("0", "1")}, {"mode": "nccl2", "cpu": True}]
)
def test_a_batch_script_is_a_shell_script(
    script: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    checked = ran(Job(script, ("it's; rm -rf /",), **options), tmp_path, "-n")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_command_prints_and_starts_nothing(script: str) -> None:
    words = ["launch", "--emit", "kubernetes", "--image", "i:1", "--name", "j", script, "x"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    assert done.output == emit("kubernetes", Job(script, ("x",)), "i:1", "j")
    assert not Path("log").exists()


@pytest.mark.parametrize(
    ("options", "names", "message"),
    [
        ({"host": "10.0.0.1"}, ("i:1", ""), "no use for --host"),
        ({}, ("", ""), "needs an image"),
        ({}, ("i:1", "Not_a_name"), "is not the name of a job"),
        ({"trainers": 0}, ("i:1", ""), "at least one"),
    ],
)
def test_what_makes_no_sense_there_is_refused(
    script: str, options: dict[str, Any], names: tuple[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        emit("kubernetes", Job(script, **options), *names)
