"""The page of operators says what the table and the cases say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_operator_page_is_up_to_date() -> None:
    """Write it anew with `make docs`."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "operators_table.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (ROOT / "docs" / "operators.md").read_text() == made.stdout
