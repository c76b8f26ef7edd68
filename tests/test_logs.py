"""Records of bireme are plain lines on stderr, until a program has handlers of its own."""

import re
import subprocess
import sys

import pytest

from tests.support.source_tree import ROOT, sources

SCRIPT = """
import logging, sys
from bireme import logs
log = logs.logger("server")
{0}
log.info("server %s serves", "h:1")
log.debug("not shown")
print("out")
"""


def shown(configuration: str) -> tuple[str, str]:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(configuration)], capture_output=True, text=True
    )
    return ran.stdout, ran.stderr


def test_a_plain_program_sees_records_on_stderr() -> None:
    assert shown("") == ("out\n", "server h:1 serves\n")


@pytest.mark.parametrize("name", ["", "bireme"])
def test_handlers_of_the_program_replace_ours(name: str) -> None:
    mine = f"logging.getLogger('{name}').addHandler(logging.StreamHandler(sys.stdout))"
    assert shown(mine) == ("server h:1 serves\nout\n", "")


def test_a_level_of_the_program_counts() -> None:
    assert shown("logging.getLogger('bireme').setLevel(logging.WARNING)") == ("out\n", "")


def test_the_error_that_ends_a_process_is_shown_whatever_handlers_there_are() -> None:
    silent = "logging.disable(); logs.show_error('bireme: gone', OSError())"
    assert shown(f"logging.getLogger().addHandler(logging.NullHandler()); {silent}") == (
        "out\n",
        "bireme: gone\n",
    )


def test_the_documented_loggers_are_those_of_the_source() -> None:
    made = {
        name
        for path in sources()
        for name in re.findall(r"log.* = logger\(\"(\w+)\"", path.read_text())
    }
    page = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^\| `bireme\.(\w+)` ", page, re.MULTILINE)) == made
