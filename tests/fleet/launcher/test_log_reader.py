"""A log is read in parts of bounded size, whatever is printed."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from bireme.fleet.launcher import display, log_reader
from bireme.fleet.launcher.display import Display
from bireme.fleet.launcher.job import Seat
from bireme.fleet.launcher.log_reader import LogReader


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "CHUNK", 8)
    monkeypatch.setattr(display, "MOST_PARTS", 4)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one\ntwo\nthree\n", [["one", "two"], ["three"]]),
        ("a\n\nb\nunfin", [["a", "", "b"], ["unfin"]]),
        ("a long line\nb\n", [["a long l"], ["ine", "b"]]),
        ("äöüäöüä\n", [["äöüä"], ["öüä"]]),
        ("xäöüäöüäö\n", [["xäöü"], ["äöüä"], ["ö"]]),
        ("", []),
    ],
)
def test_lines_come_in_parts_and_long_ones_in_pieces(
    tmp_path: Path, text: str, parts: list[list[str]]
) -> None:
    (tmp_path / "log").write_text(text)
    reader = LogReader(tmp_path / "log")
    assert list(iter(lambda: reader.lines(last=True), [])) == parts
    reader.close()


def test_an_unfinished_line_is_left_until_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("one\ntw")
    reader = LogReader(log)
    assert [reader.lines(), reader.lines()] == [["one"], []]
    log.write_text("one\ntwo\n")
    assert reader.lines() == ["two"]
    reader.close()


def test_a_refresh_shows_a_bounded_part_and_close_all(tmp_path: Path) -> None:
    log = tmp_path / "workerlog.0"
    lines = [f"step {i}" for i in range(10)]
    log.write_text("".join(f"{line}\n" for line in lines))
    child = SimpleNamespace(seat=Seat("trainer", 0, log.name, {}), log=log, log_begin=0, figures={})
    out = io.StringIO()
    shown = Display([child], out, table=False)  # type: ignore[list-item]  # its log is enough
    shown.refresh()
    assert (out.getvalue().splitlines(), shown.behind) == (lines[:4], True)
    shown.close()
    assert (out.getvalue().splitlines(), shown.behind) == (lines, False)
