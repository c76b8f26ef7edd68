"""The table of tutorials.md names tests that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("tutorials.md")
ROWS = re.findall(r"\| ([\w/]+\.py): (test_\w+) \|", TABLE.read_text())


def test_the_table_has_a_row_for_every_feature() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize(("file", "name"), ROWS)
def test_the_test_of_a_feature_exists(file: str, name: str) -> None:
    source = (ROOT / "tests" / file).read_text()
    assert re.search(rf"def {name}\(", source), f"{TABLE.name} names {file}: {name}"


@pytest.mark.wire
def test_a_process_starts_without_operators_and_grpc(tmp_path: Path) -> None:
    """Eight processes share few cores, so what a script does not ask for is not loaded."""
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "heavy = ('bireme.ops', 'bireme.layers', 'bireme.transpiler', 'grpc', 'cupy')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    command = [sys.executable, "-m", "bireme.fleet.scripts.script", "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
