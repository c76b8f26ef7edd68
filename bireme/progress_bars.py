"""Progress of long work, on a terminal only: elsewhere nothing is written.

    with progress("loading", total=len(files)) as done:
        for file in files:
            read(file)
            done()

`rich` loads with the first bar that is shown.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["progress"]

PAUSE = 0.1  # seconds between two looks of a bar
PATIENCE = 0.5  # seconds of work before a bar appears


@contextmanager
def progress(
    what: str, total: int | None = None, unit: str = "", out: TextIO | None = None
) -> Iterator[Callable[[], None]]:
    """Show how much of `total` is done, how fast, and how long it will still take; without a total
    how much, and how fast. What the block is given counts one when it is called.
    """
    stream = out or sys.stderr
    if not stream.isatty():
        yield _nothing
        return
    bar = _Bar(what, total, unit, stream)
    try:
        yield bar.count
    finally:
        bar.close()


def _nothing() -> None:
    pass


class _Bar:
    """Counts, and draws now and then. Work that is soon done shows nothing."""

    def __init__(self, what: str, total: int | None, unit: str, stream: TextIO) -> None:
        self._what, self._total, self._unit, self._stream = what, total, unit, stream
        self._done = 0
        self._next = time.monotonic() + PATIENCE
        self._draw: Callable[[int], None] | None = None
        self._stop = _nothing

    def count(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PAUSE
            if self._draw is None:
                self._open()
            if self._draw is not None:
                self._draw(self._done)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(file=self._stream, force_terminal=True)
        if console.is_dumb_terminal:
            self._next = float("inf")
            return
        unit = f" {self._unit}" if self._unit else ""
        whole = "" if self._total is None else "/{task.total:,.0f}"
        shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(f"{{task.completed:,.0f}}{whole}{unit}"),
            TextColumn("{task.fields[rate]:,.0f}/s"),
            *([] if self._total is None else [TimeRemainingColumn()]),
            console=console,
            transient=True,
            auto_refresh=False,
        )
        task = shown.add_task(self._what, total=self._total, rate=0.0)
        began = time.monotonic() - PATIENCE
        shown.start()

        def draw(done: int) -> None:
            rate = done / max(1e-9, time.monotonic() - began)
            shown.update(task, completed=done, rate=rate, refresh=True)

        self._draw, self._stop = draw, shown.stop

    def close(self) -> None:
        self._stop()
