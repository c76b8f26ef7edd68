"""The page that follows one step tells the truth: its files are those that a step runs through."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FILES, LINES = 35, 6000

pytestmark = [pytest.mark.wire, pytest.mark.slow]


def section() -> str:
    return PAGE.read_text().partition("## One synchronous step")[2].partition("\n## ")[0]


def path() -> list[str]:
    """The files to be read."""
    return re.findall(r"^\| `([\w/]+\.py)` \|", section(), re.MULTILINE)


def named() -> set[str]:
    """Those, and the ones of which a step calls a function or two."""
    return set(re.findall(r"`([\w/]+\.py)`", section()))


def test_one_step_can_be_read_in_a_sitting() -> None:
    assert len(path()) <= FILES
    assert sum((ROOT / file).read_text().count("\n") for file in path()) <= LINES


def test_a_step_runs_through_the_named_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    called = import_module("walk").walked()
    assert set(called) <= named()
    ported = {"bireme/net/carriers.py", "bireme/net/messages.py"}  # declarations, not calls
    assert set(path()) - ported <= set(called)
