"""The documentation says what the code says, and what it shows runs."""

import contextlib
import functools
import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from bireme import flags
from bireme.fleet.cli import main
from tests.support import source_tree
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
OUTSIDE = set("apt-get export kubectl pip podman ray sbatch tensorboard".split())
Check = Callable[[], object]
SEPARATORS = {"|", "||", "&", "&&", ";", "(", ")", ");", "$"}


class Shown(NamedTuple):
    page: Path
    line: str

    def __str__(self) -> str:
        return f"{label(self.page)}: {self.line}"


def shown() -> Iterator[Shown]:
    """Every command in an indented block, or in `code` that begins with a program's name."""
    for page in PAGES:
        hidden = r"^```.*?^```|^<!--.*?-->"
        text = re.sub(hidden, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        lines = re.findall(r"^    (?=\S)(.*)", text.replace("\\\n", " "), re.MULTILINE)
        lines += re.findall(r"`((?:bireme|make|pip install) [^`]+)`", text)
        yield from (Shown(page, line.split("  #")[0].rstrip(" &")) for line in lines)


def commands_of(line: str) -> list[list[str]]:
    """The words of each command in a line, without redirections."""
    found: list[list[str]] = [[]]
    lexer = shlex.shlex(re.split(r"\s{3,}", line)[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in lexer:
        if word in SEPARATORS:
            found.append([])
        elif set(word) <= {"<", ">"}:
            next(lexer, None)
        else:
            found[-1].append(word)
    return [words for words in found if words]


def checks_of(words: list[str]) -> Iterator[Check]:
    """What can be checked of a command without running it."""
    given = words[1:] if words[0] == "export" else words
    variables = [*itertools.takewhile(re.compile(r"[A-Z_]\w*=").match, given)]
    for name in (word.partition("=")[0] for word in variables):
        if name.startswith(("FLAGS_", "BIREME_", "PADDLE_")):
            yield partial(check_variable, name)
    program, *rest = given[len(variables) :] or [""]
    if program in CHECKS:
        yield from CHECKS[program](rest)
    elif "/" in program:
        yield partial(check_file, program)
    else:
        inner = [at for at, word in enumerate(rest) if word == "bireme"]  # mpiexec -n 2 bireme run
        yield from checks_of(rest[inner[0] :]) if inner else ()


def checks_of_bireme(rest: list[str]) -> Iterator[Check]:
    yield partial(check_bireme, rest)


def checks_of_make(rest: list[str]) -> Iterator[Check]:
    yield partial(check_make, {word for word in rest if "=" not in word})


def checks_of_pip(rest: list[str]) -> Iterator[Check]:
    for word in rest:
        if found := re.fullmatch(r"(?:bireme|\.)\[(.*)\]", word):
            yield partial(check_extras, set(found[1].split(",")))


def checks_of_python(rest: list[str]) -> Iterator[Check]:
    match rest:
        case ["-c", code]:
            yield partial(exec, compile(code, "<shown>", "exec"), {})
        case ["-m", "pip", *words]:
            yield from checks_of_pip(words)
        case ["-m", module, *_]:
            yield partial(check_module, module)
        case [path, *_] if "/" in path:
            yield partial(check_file, path)


CHECKS = {
    "bireme": checks_of_bireme,
    "make": checks_of_make,
    "pip": checks_of_pip,
    "python": checks_of_python,
    "python3": checks_of_python,
}


def check_variable(name: str) -> None:
    if name.startswith("FLAGS_"):
        flags.get(name)
    else:
        assert any(name in text for text in read_sources()), f"nothing reads {name}"


def check_bireme(rest: list[str]) -> None:
    if rest and rest[0] in main.commands:
        given = ["1" if word == "N" else word for word in rest[1:]]
        # a sentence speaks of a command without its arguments
        with contextlib.suppress(click.MissingParameter, click.exceptions.NoArgsIsHelpError):
            main.commands[rest[0]].make_context(rest[0], given)
    else:
        assert rest == [] or rest[0].startswith("-"), f"there is no command {rest[0]}"


def check_make(targets: set[str]) -> None:
    assert targets <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_extras(extras: set[str]) -> None:
    assert extras <= set(SETTINGS["project"]["optional-dependencies"])


def check_module(name: str) -> None:
    assert find_spec(name) is not None


def check_file(path: str) -> None:
    assert (ROOT / path).is_file(), "not in the repository; output goes into a ``` block"


@functools.cache
def read_sources() -> list[str]:
    return [path.read_text() for path in source_tree.sources()]


COMMANDS = sorted({str(s): s for s in shown()}.items())
CHECKED = {
    name: found
    for name, s in COMMANDS
    if (found := [check for words in commands_of(s.line) for check in checks_of(words)])
}


@pytest.mark.parametrize("name", CHECKED, ids=str)
def test_a_command_that_is_shown_exists(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in name.split():
        if word == "SCRIPT" or (word.endswith(".py") and "/" not in word):
            Path(word).touch()
    for check in CHECKED[name]:
        check()


def test_all_other_commands_are_of_other_projects() -> None:
    others = [s.line for name, s in COMMANDS if name not in CHECKED]
    programs = {line.split()[0] for line in others}
    assert programs <= OUTSIDE, "not a command? output goes into a ``` block"


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
