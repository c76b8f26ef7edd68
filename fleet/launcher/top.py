"""`bireme top`: one row per process of a cluster, from their admin ports.

A process that does not answer has a row that says so.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bireme.text_tables import plain_text, table_of

from ..telemetry.asking import Asker
from ..telemetry.job_file import Process
from ..telemetry.snapshot import (
    Observed,
    error_of,
    is_dead,
    is_server,
    name_of,
    staleness_of,
    state_of,
)

__all__ = ["rows_of", "show"]

COLUMNS = (
    "process",
    "state",
    "step",
    "loss",
    "samples/s",
    "wait",
    "stale",
    "in/s",
    "out/s",
    "last error",
)
RIGHT = COLUMNS[2:-1]
NONE = "-"


# -- rows ----------------------------------------------------------------------------------------
def rows_of(observed: Sequence[Observed]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` per process."""
    stale = staleness_of(observed)
    return [_row(one, stale) for one in observed]


def _row(observed: Observed, stale: Mapping[int, float]) -> tuple[str, ...]:
    named = name_of(observed), state_of(observed)
    status = observed.status
    if status is None:
        return (*named, *_last(observed.process.figures), *[NONE] * 4, error_of(observed))
    rates, server = status.rates, is_server(observed)
    own = stale.values() if server else [s for t, s in stale.items() if t == status.index]
    return (
        *named,
        f"{status.step:,}",
        f"{status.loss:.4f}" if status.loss is not None else NONE,
        NONE if server else f"{rates.samples_per_second:,.0f}",
        _seconds(rates.wait_seconds),
        f"{sum(own) / len(own):.1f}" if own else NONE,
        _bytes(rates.received_bytes_per_second),
        _bytes(rates.sent_bytes_per_second),
        error_of(observed),
    )


def _last(figures: Mapping[str, float]) -> tuple[str, str, str]:
    """Step, loss and samples per second of a process that has exited."""
    formats = {"step": "{:,.0f}", "loss": "{:.4f}", "samples_per_second": "{:,.0f}"}
    step, loss, rate = (f.format(figures[n]) if n in figures else NONE for n, f in formats.items())
    return step, loss, rate


def _seconds(value: float) -> str:
    return NONE if value <= 0 else f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.1f} s"


def _bytes(value: float) -> str:
    if value < 1:
        return NONE
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


# -- the screen ----------------------------------------------------------------------------------
def show(
    find: Callable[[], Sequence[Process]],
    *,
    once: bool,
    interval: float,
    out: TextIO | None = None,
) -> None:
    """Print one table, or update it until all processes have exited. Where tables follow one
    another, one that says the same as the last is not printed.
    """
    shown: list[tuple[str, ...]] = []
    with _screen(out or sys.stdout, once) as draw, Asker() as asker:
        while True:
            observed = asker.snapshot(find()).observed
            if (rows := rows_of(observed)) != shown or (out or sys.stdout).isatty():
                draw(rows)
            shown = rows
            if once or all(each.process.exit_code is not None for each in observed):
                return
            time.sleep(interval)


Draw = Callable[[list[tuple[str, ...]]], None]


@contextmanager
def _screen(out: TextIO, once: bool) -> Iterator[Draw]:
    """How to draw a table: in place on a terminal, else one after another."""
    console = Console(file=out, force_terminal=out.isatty())
    if once or not console.is_terminal or console.is_dumb_terminal:
        yield lambda rows: print(plain_text(COLUMNS, rows, RIGHT), file=out, flush=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda rows: live.update(_live_table(rows), refresh=True)


def _live_table(rows: list[tuple[str, ...]]) -> Table:
    """The table with red rows for dead processes."""
    made = table_of(COLUMNS, rows, RIGHT, lambda row: "red" if is_dead(row[1]) else "")
    made.title = f"bireme top  {time.strftime('%H:%M:%S')}  Ctrl-C to quit"
    made.title_justify = "left"
    return made
