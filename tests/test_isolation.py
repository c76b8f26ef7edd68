"""Tests see nothing of the user who runs them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from bireme.dataset import common

from .conftest import XDG

NAMES = ["HOME", "TMPDIR", *(f"XDG_{name}" for name in XDG)]


@pytest.mark.parametrize("name", NAMES)
def test_directories_of_the_user_are_those_of_the_session(name: str) -> None:
    given = Path(os.environ[name])
    assert given.is_dir()
    assert given.parent.name.startswith("bireme-")


def test_temporary_files_and_the_home_are_found_there(tmp_path: Path) -> None:
    own = Path(os.environ["HOME"]).parent
    assert Path(tempfile.gettempdir()) == own / "tmp"
    assert Path.home() == own / "home"
    assert all(own in home.parents for home in common.data_homes())
    assert own not in tmp_path.parents  # pytest keeps that of failed tests


def test_processes_that_a_test_starts_find_them_too() -> None:
    code = "import pathlib, tempfile; print(pathlib.Path.home(), tempfile.gettempdir())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [os.environ["HOME"], os.environ["TMPDIR"]]
