"""The launcher's output: live on a terminal, plain lines elsewhere."""

import io
import os
import pty
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme.fleet.launcher.display import Display
from bireme.fleet.launcher.job import Seat
from bireme.fleet.launcher.pace import Pace, clock_text


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
            counted={},
            seen=figures,
            pace=Pace(),
            total=0,
            total_is_guess=False,
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
        "process    state    step    loss  samples/s  left",
        "trainer 0  running     3  0.5000          -     -",
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
    seen = b"".join(iter(partial(_read, ours), b"")).decode()
    os.close(ours)
    table, line = seen.index("trainer 0"), seen.index("[bold]step[/bold] 1")
    assert table < line < seen.index("trainer 0", line)  # drawn again below the line
    assert "\x1b[1A" in seen[table:line]
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


def _read(terminal: int) -> bytes:
    """What has arrived since; nothing once the writer has closed its side and all is read."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def test_what_ends_a_process_is_left_to_the_verdict(children: list[Any]) -> None:
    children[0].log.write_text("step 1\nbireme: Aborted: trainer 1 gave up\n  trainer 1, step 5\n")
    out = io.StringIO()
    display = Display(children, out)
    display.refresh()
    assert out.getvalue() == "step 1\n"
    assert display.unseen_tail(children[0]) == [
        "bireme: Aborted: trainer 1 gave up",
        "  trainer 1, step 5",
    ]
    display.close()


def test_the_time_left_follows_from_the_pace(children: list[Any]) -> None:
    child = children[0]
    child.pace.note(10.0, {"step": 1})
    child.pace.note(12.0, {"step": 3})
    out = io.StringIO()
    display = Display(children, out)
    for total, guess, text in [(63, False, " 1:00"), (63, True, "~1:00"), (0, False, "    -")]:
        child.total, child.total_is_guess = total, guess
        display._draw(last=True)
        assert out.getvalue().splitlines()[-1].endswith(text)
    display.close()


def test_a_count_that_stands_still_keeps_its_rate() -> None:
    pace = Pace()
    for second, step in enumerate([0, 10, 20, 30, 30, 30]):
        pace.note(float(second), {"step": step})
    assert pace.rate("step") == 10.0
    assert pace.left(30, 100) == 7.0
    pace.note(6.0, {"step": 36})  # 2 a second since it stood still
    assert 2.0 < (pace.rate("step") or 0) < 10.0


def test_a_duration_is_said_in_minutes_or_hours() -> None:
    assert [clock_text(s) for s in (0.4, 59.7, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]
