"""Runs the blocks of a page of documentation.

    ```python      a file, if its first line is `# name.py`; else a part of the page's own program
    ```sh          commands, run in the page's folder; if they follow a part of the page's program
                   and no output is shown, the program runs them where they stand
    ```text        what the commands before it print; dots stand for anything

`<!-- python ... -->` is a part of the page's program that readers do not see. `<!-- not run -->`
before a block says that it needs what a test has not, `<!-- needs ray -->` that it needs a library,
without which it is left out. Other kinds are not run.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

__all__ = ["Block", "blocks", "run_page"]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?P<skip><!-- not run[^>]*-->\s*)?(?:<!-- needs (?P<needs>\w+) -->\s*)?"
    r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$"
    r"|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# ([\w/.-]+\.py)\n")


class Block(NamedTuple):
    kind: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks to run, in order."""
    return [
        Block("python", found["hidden"]) if found["hidden"] else Block(found["kind"], found["text"])
        for found in BLOCK.finditer(page)
        if not found["skip"] and (not found["needs"] or find_spec(found["needs"]))
    ]


def run_page(page: Path, folder: Path) -> None:
    """Run a page's blocks in `folder`; AssertionError if one fails or prints something else."""
    output, program = "", []
    (folder / "examples").symlink_to(ROOT / "examples")
    every = blocks(page.read_text())
    for (kind, text), after in zip(every, [*every[1:], None], strict=True):
        name = FILE.match(text)
        if kind == "python" and name:
            (folder / name[1]).write_text(text)
        elif kind == "python":
            program.append(text)
        elif kind == "sh" and program and (after is None or after.kind != "text"):
            program.append(
                f"import subprocess; subprocess.run(['bash', '-ec', {text!r}], check=True)"
            )
        elif kind == "sh":
            output = shell(text, folder)
        elif kind == "text" and output:
            assert all(says(line, output) for line in text.splitlines()), (text, output)
    if program:
        (folder / "page.py").write_text("\n".join(program))
        shell("python page.py", folder)


def shell(command: str, folder: Path) -> str:
    """What commands print, where `bireme` and `python` are those of this test."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", command],
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
