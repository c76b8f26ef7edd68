"""The launcher's output: live on a terminal, plain lines elsewhere."""

import io
import os
import pty
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme.fleet.launcher.display import Display
from bireme.fleet.launcher.job import Seat


@pytest.fixture
def children(tmp_path: Path) -> list[Any]:
    """A trainer that has reported two figures and printed two lines, one of them unfinished."""
    log = tmp_path / "workerlog.0"
    log.write_text("[bold]step[/bold] 1\nstep")
    figures = {"step": 3.0, "loss": 0.5}
    seat = Seat("trainer", 0, log.name, {})
    return [
        SimpleNamespace(
            seat=seat,
            running=True,
            exit_code=None,
            figures=figures,
            speed=None,
            log=log,
            log_begin=0,
        )
    ]


def test_elsewhere_the_output_is_plain_and_ends_with_the_table(children: list[Any]) -> None:
    out = io.StringIO()
    display = Display(children, out)
    display.refresh()
    assert out.getvalue() == "[bold]step[/bold] 1\n"
    display.close()
    assert out.getvalue().splitlines()[1:] == [
        "step",
        "process    state    step    loss  accuracy  samples/s",
        "trainer 0  running     3  0.5000         -          -",
    ]


def test_on_a_terminal_lines_are_printed_above_the_table(
    children: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as out:
        display = Display(children, out)
        display._draw(last=False)
        display.refresh()
        display.close()
        out.flush()
        seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    table, line = seen.index("trainer 0"), seen.index("[bold]step[/bold] 1")
    assert table < line < seen.index("trainer 0", line)  # drawn again below the line
    assert "\x1b[1A" in seen[table:line]
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
