"""The documentation says what the code says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bireme import flags

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def test_the_flag_page_is_the_table() -> None:
    """Write it anew with `make docs`."""
    assert (DOCS / "flags.md").read_text() == flags.markdown() + "\n"


def test_the_page_of_names_is_up_to_date() -> None:
    """Write it anew with `make docs`; every difference of arguments has its reason."""
    tool = [sys.executable, str(ROOT / "tools" / "compatibility_table.py")]
    made = subprocess.run(tool, capture_output=True, text=True, timeout=120, check=True).stdout
    page = (DOCS / "compatibility.md").read_text()
    assert page == made  # in a process of its own: modules that other tests loaded have names too
    assert "|  |" not in page


@pytest.mark.wire
@pytest.mark.parametrize("how", [["run"], ["launch", "--servers", "2", "--trainers", "2"]])
def test_the_script_of_the_readme_runs_in_every_role(tmp_path: Path, how: list[str]) -> None:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    (tmp_path / "train.py").write_text(found[1])
    command = [sys.executable, "-m", "bireme", *how, "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("page", ["formats.md"])
def test_the_blocks_of_a_page_run_in_their_order(page: str, tmp_path: Path) -> None:
    """Blocks of Python share their names; commands run between them."""
    for library in ("pyarrow", "upath", "onnx", "onnxruntime", "safetensors"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    script = ["import subprocess, sys"]
    for kind, block in re.findall(
        r"```(python|sh)\n(.*?)```", (DOCS / page).read_text(), re.DOTALL
    ):
        lines = [line.split() for line in block.splitlines() if kind == "sh"]
        assert all(words[0] == "bireme" for words in lines)
        script += [block] if kind == "python" else [
            f"subprocess.run([sys.executable, '-m', *{words}], check=True)" for words in lines
        ]  # fmt: skip
    assert len(script) > 5
    (tmp_path / "page.py").write_text("\n".join(script))
    command = [sys.executable, "page.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
