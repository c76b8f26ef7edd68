"""How long the path of a step is, by what runs in it."""

from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.wire, pytest.mark.slow]


class Limits(NamedTuple):
    files: int
    lines: int  # of functions that run
    server: int  # changes from file to file
    trainer: int


LIMITS = {
    "dense": Limits(45, 2100, 150, 100),
    "table": Limits(52, 2400, 200, 130),
    "journal": Limits(58, 2400, 200, 130),
}


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return import_module("walk")


@pytest.mark.parametrize("model", LIMITS)
def test_a_step_runs_in_few_files_and_short_functions(walk: Any, model: str) -> None:
    walked = walk.walked(model)
    server, trainer = map(walked.changes, walk.ROLES)
    found = Limits(len(walked.files), walked.lines, server, trainer)
    assert all(a <= b for a, b in zip(found, LIMITS[model], strict=True)), found


def test_the_page_names_the_files_that_run(walk: Any) -> None:
    page = walk.PAGE.read_text()
    assert all(f"| `{file}` |" in page for file in walk.walked().files)
