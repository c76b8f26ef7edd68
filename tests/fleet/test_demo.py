"""The demonstration runs and leaves nothing; every command's help shows how to call it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.fleet.cli import main
from tests.support.processes import ignoring

COMMANDS = sorted(main.commands)


def bireme(*words: str, cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bireme", *words]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, env={**os.environ, **env}
    )


@pytest.mark.wire
def test_the_demonstration_plans_trains_watches_and_cleans_up(tmp_path: Path) -> None:
    ran = bireme("demo", "--steps", "150", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "cut into 2 slices" in ran.stdout
    assert "trainer 1  done" in ran.stdout
    share = float(ran.stdout.partition("nobody has seen: ")[2].split()[0])
    assert share > 0.8  # a tenth is chance
    assert list(tmp_path.iterdir()) == []


@pytest.mark.wire
def test_the_logs_of_a_demonstration_can_be_kept(tmp_path: Path) -> None:
    size = ["--servers", "1", "--trainers", "1", "--steps", "5"]
    assert bireme("demo", *size, "--keep", "logs", cwd=tmp_path).returncode == 0
    assert {"job.json", "serverlog.0", "trainerlog.0"} <= set(os.listdir(tmp_path / "logs"))


@pytest.mark.wire
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demonstration_and_all_it_started(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bireme", "demo", "--steps", "1000000"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with ignoring(signal.SIGINT):  # as a shell starts its background jobs
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=env
        )
    assert process.stdout is not None
    with process, process.stdout as out:
        job: list[Any] = []
        for line in out:
            if line.strip().startswith("trainer 1  running"):
                (file,) = tmp_path.glob("bireme-demo-*/job.json")
                job = json.loads(file.read_text())["processes"]
                process.send_signal(number)
                break
        assert job
        try:
            assert process.wait(60) == 128 + number
        finally:
            process.kill()
    assert [p["pid"] for p in job if Path(f"/proc/{p['pid']}").exists()] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_is_for(name: str) -> None:
    command = main.commands[name]
    assert command.help
    first = command.help.strip().splitlines()[0]
    assert first.endswith((".", ":")) or len(command.help.splitlines()) > 2
    assert all(getattr(o, "help", "x") for o in command.params if o.param_type_name == "option")


@pytest.mark.parametrize("name", ["run", "launch", "explain", "verify", "demo", "top", "chaos"])
def test_help_teaches_by_example(name: str) -> None:
    assert f"bireme {name}" in (main.commands[name].help or "")
    assert f"bireme {name}" in (main.help or "")
