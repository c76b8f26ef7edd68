"""The page on migration is true: its blocks are run in their order, and print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migration.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell(command: str, folder: Path) -> str:
    """What a block of commands prints, where `bireme` and `python` are those of this test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, command + done.stdout + done.stderr
    return done.stdout


def says(line: str, output: str) -> bool:
    """Whether a line of the output is `line`, whose dots stand for anything."""
    pattern = re.escape(line).replace(re.escape("..."), ".*")
    return re.search(rf"^{pattern}$", output, re.MULTILINE) is not None


@pytest.mark.wire
@pytest.mark.slow
def test_the_page_on_migration_says_what_happens(tmp_path: Path) -> None:
    output, kinds = "", []
    for kind, text in BLOCK.findall(PAGE.read_text()):
        kinds.append(kind)
        if kind == "python":
            name = text.split("\n", 1)[0].removeprefix("# ")
            (tmp_path / name).write_text(text)
        elif kind == "sh":
            output = shell(text, tmp_path)
        else:
            assert all(says(line, output) for line in text.splitlines()), (text, output)
    assert kinds.count("sh") == kinds.count("text") == 7
    assert (tmp_path / "fit_a_line" / "__model__").exists()
