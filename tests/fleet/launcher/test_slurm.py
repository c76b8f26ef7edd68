"""Batch scripts on a real Slurm: a cluster of this machine, with slurmctld, slurmd and munged."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bireme.fleet.launcher.emit import emit
from bireme.fleet.launcher.job import Job
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "slurm_here.sh"
MISSING = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.wire,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs as root"),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([TOOL, str(folder)], check=True, capture_output=True, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for name in ("FLAGS_checkpoint_dir", "BIREME_JOB_TOKEN"):
            patch.delenv(name, raising=False)
        yield
        subprocess.run([TOOL, str(folder), "stop"], check=True, timeout=60)


def submit(job: Job, folder: Path, **variables: str) -> int:
    sent = subprocess.run(
        ["sbatch", "--parsable"], input=emit("slurm", job), cwd=folder, text=True,
        capture_output=True, check=True, timeout=60, env={**os.environ, **variables},
    )  # fmt: skip
    return int(sent.stdout)


def shown(number: int) -> str:
    command = ["scontrol", "show", "job", str(number)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def ended(number: int) -> tuple[str, int]:
    """The state and the exit code of a job, once it has ended."""
    under_way = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
    until(lambda: state(number) not in under_way, lambda: shown(number))
    return state(number), int(re.findall(r"ExitCode=(\d+)", shown(number))[0])


def state(number: int) -> str:
    return str(re.findall(r"JobState=(\w+)", shown(number))[0])


def losses(folder: Path, number: int) -> dict[str, str]:
    """By step; of a repeated step the last."""
    text = (folder / f"resume-{number}.out").read_text()
    return dict(re.findall(r"step (\d+): loss (\S+)", text))


def kill_a_trainer(kept: Path) -> None:
    """The second one, once there is a checkpoint."""
    until(lambda: any(kept.glob("step-*")))
    until(lambda: [p for p in psutil.process_iter() if is_task(p, "3")])[0].kill()


def is_task(process: psutil.Process, rank: str) -> bool:
    try:
        ours = process.environ().get("SLURM_PROCID") == rank
        return ours and "resume.py" in " ".join(process.cmdline())
    except psutil.Error:
        return False


RESUME = Job(str(ROOT / "examples" / "resume.py"), ("--steps", "200"), restart=1)


def test_a_job_goes_on_after_a_kill_and_after_a_requeue(tmp_path: Path) -> None:
    """Three jobs on one node: undisturbed, one whose trainer is killed, one that is requeued."""
    whole = submit(RESUME, tmp_path)
    assert ended(whole) == ("COMPLETED", 0)
    variables = {
        "FLAGS_checkpoint_dir": str(tmp_path / "killed"),
        "FLAGS_checkpoint_every_steps": "10",
    }
    killed = submit(RESUME, tmp_path, **variables)
    kill_a_trainer(tmp_path / "killed")
    assert ended(killed) == ("COMPLETED", 0)
    assert losses(tmp_path, killed) == losses(tmp_path, whole)

    variables["FLAGS_checkpoint_dir"] = str(tmp_path / "requeued")
    requeued = submit(RESUME, tmp_path, **variables)
    until(lambda: any((tmp_path / "requeued").glob("step-*")))
    subprocess.run(["scontrol", "requeue", str(requeued)], check=True, timeout=60)
    until(lambda: state(requeued) == "PENDING", lambda: shown(requeued))
    now = ["scontrol", "update", f"JobId={requeued}", "StartTime=now"]  # Slurm waits two minutes
    subprocess.run(now, check=True, timeout=60)
    assert ended(requeued) == ("COMPLETED", 0)
    assert "Restarts=1" in shown(requeued)
    assert losses(tmp_path, requeued) == losses(tmp_path, whole)


def test_two_jobs_share_a_node_and_a_failure_has_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import sys\nprint('no good')\nsys.exit(3)\n")
    job = Job(RESUME.script, ("--steps", "50"), servers=1, trainers=2)
    several = [submit(job, tmp_path) for _ in range(2)]
    failing = submit(Job(str(tmp_path / "fails.py"), trainers=1, mode="nccl2"), tmp_path)
    assert [ended(number) for number in several] == [("COMPLETED", 0)] * 2
    assert ended(failing) == ("FAILED", 3)
    assert (tmp_path / f"fails-{failing}.out").read_text().startswith("0: no good\n")
