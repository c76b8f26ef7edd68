"""Files that other programs read: GitHub's, by their published schemas, and the Containerfile."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = {
    ".github/workflows/*.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/[!c]*.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
}


@pytest.mark.parametrize("pattern", SCHEMAS)
def test_a_file_of_github_is_valid_by_its_schema(pattern: str) -> None:
    files = [str(path) for path in ROOT.glob(pattern)]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[pattern]]
    done = subprocess.run([*command, *files], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("line", ["    runs-on: 3", "    steps: none", "    timeout: 5"])
def test_a_wrong_workflow_is_found(line: str, tmp_path: Path) -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (tmp_path / "wrong.yml").write_text(f"{text}  more:\n{line}\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    command += [SCHEMAS[".github/workflows/*.yml"], str(tmp_path / "wrong.yml")]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode != 0


def test_a_workflow_runs_what_is_there() -> None:
    """Every command of a step is a file of the repository, a make target or Python."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    runs = [line.split("#")[0].split() for line in re.findall(r"- run: (.*)", text)]
    assert len(runs) > 2
    for program, *words in runs:
        if program == "make":
            assert set(words) <= targets
        elif program not in ("python", "sudo"):
            assert (ROOT / program).is_file()


def test_the_containerfile_is_sound() -> None:
    """It parses, takes any base, copies between stages that exist, and does not run as root."""
    parser = DockerfileParser(fileobj=io.BytesIO((ROOT / "Containerfile").read_bytes()))
    steps = [(step["instruction"], step["value"]) for step in parser.structure]
    known = set("ADD ARG CMD COMMENT COPY ENTRYPOINT ENV FROM RUN USER WORKDIR".split())
    assert {name for name, _ in steps} <= known
    images = [value for name, value in steps if name == "FROM"]
    assert all(image.startswith("${BASE}") for image in images)
    bases = [value for name, value in steps if name == "ARG" and value.startswith("BASE=")]
    assert bases == ["BASE=docker.io/library/python:3.12-slim"]
    stages = {image.split(" AS ")[1] for image in images if " AS " in image}
    sources = {word for n, v in steps if n == "COPY" for word in re.findall(r"--from=(\w+)", v)}
    assert sources == stages
    last = [name for name, _ in steps][max(i for i, s in enumerate(steps) if s[0] == "FROM") :]
    assert last.index("USER") < last.index("CMD")
    assert ("USER", "trainer") in steps
