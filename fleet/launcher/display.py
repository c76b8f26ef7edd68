"""The launcher's output: the first trainer's output, and a table of all processes.

The table is live on a terminal; elsewhere one line per process is printed periodically.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import IO, TextIO

from rich.console import Console
from rich.live import Live

from bireme.text_tables import plain_text, table_of

from .child import Child

__all__ = ["Display"]

COLUMNS = ("process", "state", "step", "loss", "accuracy", "samples/s")
RIGHT = COLUMNS[2:]


def _cells(child: Child) -> tuple[str, ...]:
    figures = child.figures
    state = (
        "running"
        if child.running
        else "done"
        if child.exit_code == 0
        else f"exit {child.exit_code}"
    )
    return (
        str(child.seat),
        state,
        f"{figures['step']:.0f}" if "step" in figures else "-",
        f"{figures['loss']:.4f}" if "loss" in figures else "-",
        f"{figures['accuracy']:.3f}" if "accuracy" in figures else "-",
        f"{child.speed:,.0f}" if child.speed is not None else "-",
    )


class Display:
    """Prints to `out` until `close`, five times a second on a terminal, else every 2 s."""

    def __init__(
        self,
        children: Sequence[Child],
        out: TextIO = sys.stdout,
        table: bool = True,
        echo_all: bool = False,
    ) -> None:
        self._children = children
        self._out = out
        self.table = table
        console = Console(file=out, force_terminal=out.isatty())
        terminal = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if terminal else None
        self._pause = 0.2 if self._live else 2.0
        self._next = time.monotonic() + self._pause
        trainers = [child for child in children if child.seat.role == "trainer"]
        self._logs: list[IO[bytes]] = []
        for child in trainers if echo_all else trainers[:1]:
            self._logs.append(open(child.log, "rb"))  # noqa: SIM115  # until close
            self._logs[-1].seek(child.log_begin)

    def say(self, *lines: str) -> None:
        """Print permanent lines above the table."""
        for line in lines:
            if self._live:
                self._live.console.out(line, highlight=False)
            else:
                print(line, file=self._out)
        self._out.flush()

    def refresh(self, last: bool = False) -> None:
        """Show new output of trainers, and the table when due."""
        for log in self._logs:
            if output := _new_lines(log, last):
                self.say(*output)
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + self._pause
            self._draw(last)

    def close(self) -> None:
        self.refresh(last=True)
        for log in self._logs:
            log.close()

    def _draw(self, last: bool) -> None:
        if not (self.table or any(child.figures for child in self._children)):
            return
        rows = [_cells(child) for child in self._children]
        if last:
            self._stop_live()
            self.say(plain_text(COLUMNS, rows, RIGHT))
        elif self._live:
            self._live.start()
            self._live.update(table_of(COLUMNS, rows, RIGHT), refresh=True)
        else:
            self.say(*(line for line in map(_brief, self._children) if line))

    def _stop_live(self) -> None:
        """Remove the live table and continue in plain text."""
        if self._live:
            self._live.stop()
            self._live = None


def _new_lines(log: IO[bytes], last: bool) -> list[str]:
    """New lines of a log; an unfinished line only if `last`."""
    start = log.tell()
    data = log.read()
    whole = len(data) if last else data.rfind(b"\n") + 1
    log.seek(start + whole, os.SEEK_SET)
    return data[:whole].decode(errors="replace").splitlines()


def _brief(child: Child) -> str:
    """One line about a running process that has reported progress."""
    if not (child.running and child.figures):
        return ""
    named = zip(COLUMNS[2:], _cells(child)[2:], strict=True)
    return f"{child.seat}: " + "  ".join(f"{name} {value}" for name, value in named if value != "-")
