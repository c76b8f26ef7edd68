"""Progress of long work: on a terminal in place, elsewhere nothing."""

import io
import sys
from pathlib import Path

import pytest

from bireme import progress_bars
from bireme.progress_bars import progress
from tests.support.terminal import Terminal


def test_nothing_is_written_where_nobody_looks() -> None:
    out = io.StringIO()
    with progress("loading", 2, out=out) as done:
        done()
        done()
    assert out.getvalue() == ""


def test_a_bar_that_is_soon_done_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Screen()
    monkeypatch.setattr(progress_bars, "PATIENCE", 1e9)
    with progress("loading", out=out) as done:
        done()
    assert out.getvalue() == ""


SCRIPT = """
import os, time
from bireme import progress_bars
progress_bars.PATIENCE = progress_bars.PAUSE = 0.0
with progress_bars.progress("loading", 40, "files") as done:
    for number in range(30):
        done()
    while not os.path.exists("go"):
        time.sleep(0.01)  # a file is the event
print("after", flush=True)
"""


@pytest.mark.wire
def test_on_a_terminal_the_bar_stays_in_place_and_goes(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    with Terminal([sys.executable, "work.py"], tmp_path) as terminal:
        while not any("30/40 files" in line for line in terminal.lines):
            assert terminal.read()
        assert len(terminal.lines) == 1
        (tmp_path / "go").touch()
        assert terminal.to_the_end() == 0
        assert terminal.lines == ["after"]
        assert terminal.cursor_is_visible
