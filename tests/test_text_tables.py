"""Tables of text: aligned columns, plain where nobody asked for colours."""

import pytest

from bireme.text_tables import plain_text

HEAD = ("process", "step", "last error")


def test_columns_are_aligned_and_lines_end_with_their_last_word() -> None:
    text = plain_text(HEAD, [("server 0", "1,234", ""), ("t", "-", "lost")], right=["step"])
    assert text.splitlines() == [
        "process    step  last error",
        "server 0  1,234",
        "t             -  lost",
    ]


def test_no_cell_is_cut_or_read_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    error = "[bold]x[/bold] :smile: " + "word " * 60 + "end"
    assert plain_text(HEAD, [("a", "b", error)]).splitlines()[1].endswith(error)
