"""What the launcher shows: a table that stays in place on a terminal, plain lines elsewhere.

Between them stands what the first trainer prints.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import IO, TextIO

from .child import Child

__all__ = ["Display", "table"]

COLUMNS = ("process", "state", "step", "loss", "accuracy", "samples/s")


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


def table(children: Sequence[Child]) -> list[str]:
    """One row per process under a header."""
    rows = [COLUMNS, *map(_cells, children)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return [
        "  ".join(
            c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


class Display:
    """Draws at most `rate` times a second; on a terminal it redraws in place."""

    def __init__(self, children: Sequence[Child], out: TextIO = sys.stdout) -> None:
        self._children = children
        self._out = out
        self._live = out.isatty()
        self._pause = 0.2 if self._live else 2.0
        self._next = time.monotonic() + self._pause
        self._drawn = 0
        first = next((child for child in children if child.seat.role == "trainer"), None)
        self._log: IO[bytes] | None = open(first.log, "rb") if first else None  # noqa: SIM115

    def say(self, *lines: str) -> None:
        """Print lines that stay, above the table."""
        self._erase()
        for line in lines:
            print(line, file=self._out)
        self._out.flush()

    def refresh(self, last: bool = False) -> None:
        """Show what the first trainer printed, and the table when it is time."""
        if output := self._new_output(last):
            self.say(*output)
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + self._pause
            self._draw(last)

    def close(self) -> None:
        self.refresh(last=True)
        if self._log:
            self._log.close()

    def _draw(self, last: bool) -> None:
        if self._live or last:
            lines = table(self._children)
            self.say(*lines)
            self._drawn = 0 if last else len(lines)
            return
        self.say(*(line for line in map(_brief, self._children) if line))

    def _erase(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _new_output(self, last: bool) -> list[str]:
        """New lines of the first trainer's log; one without its end only at the last."""
        if self._log is None:
            return []
        start = self._log.tell()
        data = self._log.read()
        whole = len(data) if last else data.rfind(b"\n") + 1
        self._log.seek(start + whole, os.SEEK_SET)
        return data[:whole].decode(errors="replace").splitlines()


def _brief(child: Child) -> str:
    """One line about a running process that has reported something."""
    if not (child.running and child.figures):
        return ""
    named = zip(COLUMNS[2:], _cells(child)[2:], strict=True)
    return f"{child.seat}: " + "  ".join(f"{name} {value}" for name, value in named if value != "-")
