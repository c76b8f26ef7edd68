"""The documentation says what the code says, and what it shows runs."""

import contextlib
import functools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from bireme import flags
from bireme.fleet.cli import main
from tests.support.pages import blocks, run_page
from tests.support.thorough import only_thorough

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


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


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def runs(path: Path) -> bool:
    return any(block.kind in ("python", "sh") for block in blocks(path.read_text()))


def marked(path: Path) -> Any:
    """A page that starts clusters takes seconds."""
    slow = re.search(r"^bireme launch|^<!-- needs ", path.read_text(), re.MULTILINE)
    marks = [pytest.mark.slow] if slow else []
    if path.parent.name == "zh":  # the blocks of the English page
        marks.append(only_thorough)
    return pytest.param(path, id=label(path), marks=marks)


@pytest.mark.wire
@pytest.mark.parametrize("page", [marked(page) for page in PAGES if runs(page)])
def test_every_block_of_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


# -- commands that are shown, not run ------------------------------------------------------------
class Shown(NamedTuple):
    page: Path
    line: str

    def __str__(self) -> str:
        return f"{label(self.page)}: {self.line}"


def shown() -> Iterator[Shown]:
    """Every command in an indented block, or in `code` that begins with a program's name."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        lines = re.findall(r"^    (?=\S)(.*)", text.replace("\\\n", " "), re.MULTILINE)
        lines += re.findall(r"`((?:bireme|make|pip install) [^`]+)`", text)
        yield from (Shown(page, line.split("  #")[0].rstrip(" &")) for line in lines)


def words_of(line: str) -> list[str]:
    """The command in a line, without assignments before it and what it is piped into."""
    words = shlex.split(re.split(r"\s[|<>;]\s?|\s{3,}", line)[0], comments=True)
    while words and re.match(r"\w+=", words[0]):
        words.pop(0)
    return words


COMMANDS = sorted({str(s): s for s in shown()}.items())


@functools.cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("command", [s for _, s in COMMANDS], ids=[n for n, _ in COMMANDS])
def test_a_command_that_is_shown_exists(
    command: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(command.line)
    monkeypatch.chdir(tmp_path)
    for word in words:
        if word == "SCRIPT" or (word.endswith(".py") and "/" not in word):
            Path(word).touch()
    program, *rest = words or [""]
    if program == "bireme" and rest and rest[0] in main.commands:
        given = ["1" if word == "N" else word for word in rest[1:]]
        sub = main.commands[rest[0]]
        # a sentence speaks of a command without its arguments
        with contextlib.suppress(click.MissingParameter, click.exceptions.NoArgsIsHelpError):
            sub.make_context(rest[0], [*given])
    elif program == "bireme":
        assert rest == [] or rest[0].startswith("-"), f"there is no command {rest[0]}"
    elif program == "make":
        assert {w for w in rest if "=" not in w} <= make_targets()
    elif words[:2] == ["pip", "install"]:
        found = [names for word in rest for names in re.findall(r"bireme\[(.*)\]", word)]
        extras = {extra for names in found for extra in names.split(",")}
        assert extras <= set(SETTINGS["project"]["optional-dependencies"])
    elif program in ("python", "python3") and rest[:1] and rest[0].startswith("examples/"):
        assert (ROOT / rest[0]).is_file()


# -- links ---------------------------------------------------------------------------------------
def links() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"\w+:", target):
                yield page, target


@pytest.mark.parametrize(("page", "target"), [*links()], ids=lambda v: str(v).rpartition("/")[2])
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    name, _, place = target.partition("#")
    path = (page.parent / name).resolve() if name else page
    assert path.exists()
    if place:
        heads = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
        assert place in slugs


def test_the_pages_that_the_site_lists_are_there() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w/-]+\.md", text.partition("\nnav:")[2])
    assert [name for name in listed if not (DOCS / name).is_file()] == []
    assert len(listed) == len(set(listed)) > 20


def test_the_quick_start_in_chinese_runs_what_the_english_one_runs() -> None:
    english, chinese = (
        blocks((DOCS / p).read_text()) for p in ("get-started.md", "zh/quickstart.md")
    )
    assert [block for block in english if block not in chinese] == []
