"""Errors of all processes, and the end of the log of one."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from bokeh.layouts import column
from bokeh.models import Div, InlineStyleSheet, LayoutDOM, Select

from bireme.paths import beginning_of

from ..log_lines import texts_of
from ..telemetry.snapshot import Observed, Snapshot, name_of, state_of
from .feed import Feed
from .style import SHEET, TABLE_SHEET, clock, html_table
from .views import View

__all__ = ["Logs", "fault_rows", "tail"]

HEAD = ("time", "process", "error")
MOST = 200  # lines of a log
TAIL = 64 << 10  # bytes of a log
LOG_SHEET = (
    SHEET
    + """
pre { font-size: 12px; background: #f6f6f6; padding: 8px; margin: 0; white-space: pre-wrap;
      max-height: 480px; overflow-y: auto; }
"""
)


class Logs(View):
    """The errors, a choice of processes, the log."""

    title: ClassVar[str] = "Errors and logs"

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed)
        sheets = [InlineStyleSheet(css=TABLE_SHEET)]
        self._faults = Div(sizing_mode="stretch_width", stylesheets=sheets)
        self._choice = Select(title="log of", options=[], width=220)
        self._choice.on_change("value", self._chosen)
        self._text = Div(
            sizing_mode="stretch_width",
            stylesheets=[InlineStyleSheet(css=LOG_SHEET)],
            css_classes=["log"],
        )
        self._files: dict[str, str] = {}
        self._root = column(self._faults, self._choice, self._text, sizing_mode="stretch_width")

    @property
    def root(self) -> LayoutDOM:
        return self._root

    def show(self, snapshot: Snapshot, *, latest: bool) -> None:
        rows = fault_rows(snapshot.observed)
        none = "<div class='note muted'>no process has reported an error</div>"
        _put(self._faults, html_table(HEAD, rows) if rows else none)
        self._files = {name_of(one): one.process.log for one in snapshot.observed}
        names = list(self._files)
        if names != self._choice.options:
            self._choice.options = names
            if self._choice.value not in names:
                self._choice.value = _first(snapshot.observed)
        self._read()

    def _chosen(self, attr: str, old: Any, new: Any) -> None:
        self._read()

    def _read(self) -> None:
        log = self._files.get(self._choice.value or "", "")
        if self.feed.log_dir is None or not log:
            text = "(logs are shown for jobs that are found by their log folder)"
        else:
            text = tail(self.feed.log_dir / Path(log).name) or "(empty)"
        _put(self._text, f"<pre>{escape(text)}</pre>")


def _put(div: Div, text: str) -> None:
    if div.text != text:
        div.text = text


def _first(observed: Sequence[Observed]) -> str:
    """The process whose log is shown at first: the one that has ended the job, another that has
    failed, or the first trainer.
    """
    failed = [name_of(one) for one in observed if one.process.blamed]
    failed += [name_of(one) for one in observed if state_of(one).startswith("exit ")]
    trainers = [name_of(one) for one in observed if one.process.role == "trainer"]
    return (failed or trainers or [name_of(one) for one in observed] or [""])[0]


def fault_rows(observed: Sequence[Observed]) -> list[tuple[str, tuple[str, ...]]]:
    """A row of `HEAD` for each error: ends of processes, the cause of the others first; then what
    they said themselves, the latest first.
    """
    found = [
        (at, name_of(one), text)
        for one in observed
        if one.status is not None
        for at, text in one.status.faults
    ]
    found.sort(key=lambda fault: -fault[0])
    ended = [one for one in observed if one.process.exit_code]
    ended.sort(key=lambda one: not one.process.blamed)
    found[:0] = [
        (
            one.status.time if one.status else 0.0,
            name_of(one),
            f"exit code {one.process.exit_code}: {one.process.error}".removesuffix(": "),
        )
        for one in ended
    ]
    return [("dead", (clock(at) if at else "-", name, text)) for at, name, text in found]


def tail(path: Path) -> str:
    """The last lines of a log."""
    try:
        with beginning_of(path) as file:
            file.seek(0, 2)
            whole = file.tell()
            file.seek(max(0, whole - TAIL))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    return "\n".join(list(texts_of(text.splitlines()))[-MOST:])
