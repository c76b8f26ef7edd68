"""The demonstration runs and leaves nothing; every command's help shows how to call it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.cli import main

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


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_is_for(name: str) -> None:
    command = main.commands[name]
    assert command.help
    first = command.help.strip().splitlines()[0]
    assert first.endswith((".", ":")) or len(command.help.splitlines()) > 2
    assert all(getattr(o, "help", "x") for o in command.params if o.param_type_name == "option")


@pytest.mark.parametrize("name", ["run", "launch", "explain", "verify", "demo", "top"])
def test_help_teaches_by_example(name: str) -> None:
    assert f"bireme {name}" in (main.commands[name].help or "")
    assert f"bireme {name}" in (main.help or "")
