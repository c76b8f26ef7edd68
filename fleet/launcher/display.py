"""The launcher's output: the first trainer's output, and a table of all processes.

The table is live on a terminal; elsewhere one line per process is printed periodically.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live

from bireme.text_tables import plain_text, table_of

from .child import Child
from .log_reader import LogReader
from .output import given_up_if_full
from .pace import clock_text

__all__ = ["Display"]

NONE = "-"
FIRST, LAST = ("process", "state", "step"), ("samples/s", "left")
MESSAGE = "bireme: "  # begins an error that ended a process
MOST_PARTS = 16  # of a log in one refresh: the processes are watched in between
MOST_WITHHELD = 200  # lines
PAUSE, LONGEST_PAUSE = 2.0, 60.0  # seconds between lines where nothing stays in place
Figures = Mapping[str, float]


def _table(
    children: Sequence[Child], own_figures: bool
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows; columns for loss and accuracy only where a process has one.

    `own_figures`: only what the scripts report.
    """
    seen = [child.figures if own_figures else child.seen for child in children]
    kinds = [kind for kind in FORMATS if any(kind in figures for figures in seen)]
    rows = [
        (str(child.seat), _state(child), *_figures(child, figures, kinds))
        for child, figures in zip(children, seen, strict=True)
    ]
    return (*FIRST, *kinds, *LAST), rows


FORMATS = {"loss": "{:.4f}", "accuracy": "{:.3f}"}


def _state(child: Child) -> str:
    if child.running:
        return "running"
    return "done" if child.exit_code == 0 else f"exit {child.exit_code}"


def _figures(child: Child, figures: Figures, kinds: Sequence[str]) -> list[str]:
    """The cells from `step` on."""
    rate = child.pace.rate("samples") if "samples" in figures else None
    return [
        f"{figures['step']:.0f}" if "step" in figures else NONE,
        *(FORMATS[kind].format(figures[kind]) if kind in figures else NONE for kind in kinds),
        f"{rate:,.0f}" if rate is not None else NONE,
        _left(child, figures),
    ]


def _left(child: Child, figures: Figures) -> str:
    """Time until the last step; `~` if it is known from the last run only."""
    total = figures.get("total", child.total)
    if not (child.running and total and "step" in figures):
        return NONE
    seconds = child.pace.left(figures["step"], total)
    guess = "~" if child.total_is_guess and "total" not in figures else ""
    return NONE if seconds is None else f"{guess}{clock_text(seconds)}"


class Display:
    """Prints to `out` until `close`, five times a second on a terminal; elsewhere after 2 s, and
    then more and more rarely.
    """

    def __init__(
        self,
        children: Sequence[Child],
        out: TextIO | None = None,
        table: bool = True,
        echo_all: bool = False,
    ) -> None:
        self._children = children
        self._out = out = out or sys.stdout
        self.table = table
        console = Console(file=out, force_terminal=out.isatty())
        terminal = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if terminal else None
        self._pause = 0.2 if self._live else PAUSE
        self._next = time.monotonic() + self._pause
        trainers = [child for child in children if child.seat.role == "trainer"]
        self._in_error = False
        self._withheld: deque[str] = deque(maxlen=MOST_WITHHELD)
        self.shown = trainers if echo_all else trainers[:1]
        self._logs = [LogReader(child.log, child.log_begin) for child in self.shown]
        self.behind = False  # whether there is more to show at once

    def say(self, *lines: str) -> None:
        """Print permanent lines above the table."""
        if not lines:
            return
        with given_up_if_full(self._out):
            if self._live:
                self._live.console.out("\n".join(lines), highlight=False)
            else:
                print("\n".join(lines), file=self._out)
            self._out.flush()

    def refresh(self, last: bool = False) -> None:
        """Show new output of trainers, and the table when due."""
        self.behind = False
        for log in self._logs:
            self.behind |= self._show(log, last)
        if last or time.monotonic() >= self._next:
            if not self._live:
                self._pause = min(1.5 * self._pause, LONGEST_PAUSE)
            self._next = time.monotonic() + self._pause
            self._draw(last)

    def _show(self, log: LogReader, last: bool) -> bool:
        """Show what is new in a log; whether there may be more."""
        parts = 0
        while lines := log.lines(last):
            self.say(*self._without_error(lines))
            parts += 1
            if parts == MOST_PARTS and not last:
                return True
        return False

    def _without_error(self, lines: list[str]) -> list[str]:
        """Without the message that ends the process, which the launcher shows with the cause."""
        kept: list[str] = []
        for line in lines if self.table else ():
            self._in_error = line.startswith(MESSAGE) or (self._in_error and line[:2] == "  ")
            (self._withheld if self._in_error else kept).append(line)
        return kept if self.table else lines

    def unseen_tail(self, child: Child) -> list[str]:
        """The end of a child's log, or of what is shown here already, the rest."""
        return list(self._withheld) if child in self.shown and self.table else child.tail()

    def where(self, child: Child) -> str:
        """Where the output of a child without an unseen tail is."""
        shown = child in self.shown and self.table
        return f"its output stands above, and in {child.log}" if shown else f"{child.log} is empty"

    def close(self) -> None:
        self.refresh(last=True)
        for log in self._logs:
            log.close()

    def _draw(self, last: bool) -> None:
        if not (self.table or any(child.figures for child in self._children)):
            return
        head, rows = _table(self._children, own_figures=not self.table)
        if last:
            self._stop_live()
            self.say(plain_text(head, rows, head[2:]))
        elif self._live:
            with given_up_if_full(self._out):
                self._live.start()
                self._live.update(table_of(head, rows, head[2:]), refresh=True)
        else:
            progress = zip(self._children, rows, strict=True)
            self.say(*(line for child, row in progress if (line := _brief(child, head, row))))

    def _stop_live(self) -> None:
        """Remove the live table and continue in plain text."""
        if self._live:
            with given_up_if_full(self._out):
                self._live.stop()
            self._live = None


def _brief(child: Child, head: Sequence[str], row: Sequence[str]) -> str:
    """One line about a running trainer that has made progress."""
    if not child.running or child.seat.role == "server" or row[2] == NONE:
        return ""
    named = zip(head[2:], row[2:], strict=True)
    return f"{child.seat}: " + "  ".join(
        f"{name} {value}" for name, value in named if value != NONE
    )
