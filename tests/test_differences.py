"""The table of deliberate differences is true: its tests are there, its page is fresh."""

import ast
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tests.differences import FORMULAS, TABLES

TESTS = Path(__file__).resolve().parent
ROWS = [row for table in TABLES.values() for row in table]


def test_the_page_of_differences_is_up_to_date() -> None:
    """Write it anew with `make docs`."""
    tool = run_path(str(TESTS.parent / "tools" / "differences_table.py"))
    assert (TESTS.parent / "docs" / "differences.md").read_text() == tool["page"]() + "\n"


@pytest.mark.parametrize(
    "test", sorted({row.test for row in ROWS} | {row.test for row in FORMULAS})
)
def test_a_difference_names_a_test(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_every_difference_says_everything_once() -> None:
    row: Any
    for row in (*ROWS, *FORMULAS):
        texts = [getattr(row, name) for name in row.__slots__ if name != "recorded"]
        assert all(texts)
        assert not any("|" in text or "\n" in text for text in texts)
    subjects = [row.subject for row in ROWS]
    assert len(subjects) == len(set(subjects))


def test_every_recording_is_of_a_known_kind() -> None:
    kinds = {name.partition(":")[0] for row in ROWS for name in row.recorded}
    assert kinds <= {"split", "program", "value", "curve"}
