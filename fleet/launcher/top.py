"""`bireme top`: one row per process of a cluster, from their admin ports.

A process that does not answer has a row that says so.
"""

import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from bireme.job_token import job_token
from bireme.text_tables import plain_text, table_of

from .job_file import Process

__all__ = ["Asked", "ask_all", "named", "rows_of", "show"]

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
DEAD = ("no answer", "exit ")
PATIENCE = 2.0  # seconds for one answer
LONG = 1.0  # seconds of waiting before a state names the missing trainers
NONE = "-"


class Asked(NamedTuple):
    """A process and its status; None if it did not answer."""

    process: Process
    status: Mapping[str, Any] | None


# -- asking --------------------------------------------------------------------------------------
def named(endpoints: Sequence[str]) -> tuple[Process, ...]:
    """Processes that are known by their admin ports only."""
    return tuple(Process(endpoint, -1, admin=endpoint) for endpoint in endpoints)


def ask_all(processes: Sequence[Process]) -> list[Asked]:
    """The status of every process, asked for in parallel."""
    with ThreadPoolExecutor(max(1, min(32, len(processes)))) as pool:
        return [Asked(p, s) for p, s in zip(processes, pool.map(_ask, processes), strict=True)]


def _ask(process: Process) -> Mapping[str, Any] | None:
    if not process.admin or process.exit_code is not None:
        return None
    connection = http.client.HTTPConnection(process.admin, timeout=PATIENCE)
    try:
        token = job_token()
        named = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", "/status", headers=named)
        found = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None


# -- rows ----------------------------------------------------------------------------------------
def rows_of(asked: Sequence[Asked]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` per process."""
    stale = _staleness(asked)
    return [_row(one, stale) for one in asked]


def _staleness(asked: Sequence[Asked]) -> dict[int, float]:
    """Trainer -> staleness of its gradients in steps, averaged over the servers."""
    seen: dict[int, list[float]] = {}
    for _, status in asked:
        for trainer, steps in ((status or {}).get("staleness") or {}).items():
            seen.setdefault(int(trainer), []).append(float(steps))
    return {trainer: sum(steps) / len(steps) for trainer, steps in seen.items()}


def _row(asked: Asked, stale: Mapping[int, float]) -> tuple[str, ...]:
    process, status = asked
    if status is None:
        return (_name(process, {}), _gone(process), *_last(process.figures), *[NONE] * 4, "")
    rates = status.get("rates", {})
    server = status.get("role") == "server"
    own = stale.values() if server else [s for t, s in stale.items() if t == status.get("index")]
    return (
        _name(process, status),
        _state(status),
        f"{status.get('step', 0):,}",
        f"{status['loss']:.4f}" if "loss" in status else NONE,
        NONE if server else f"{rates.get('samples_per_second', 0):,.0f}",
        _seconds(rates.get("wait_seconds", 0.0)),
        f"{sum(own) / len(own):.1f}" if own else NONE,
        _bytes(rates.get("received_bytes_per_second", 0.0)),
        _bytes(rates.get("sent_bytes_per_second", 0.0)),
        str(status.get("last_error", "")),
    )


def _last(figures: Mapping[str, float]) -> tuple[str, str, str]:
    """Step, loss and samples per second of a process that has exited."""
    formats = {"step": "{:,.0f}", "loss": "{:.4f}", "samples_per_second": "{:,.0f}"}
    step, loss, rate = (f.format(figures[n]) if n in figures else NONE for n, f in formats.items())
    return step, loss, rate


def _name(process: Process, status: Mapping[str, Any]) -> str:
    if process.index >= 0:
        return f"{process.role} {process.index}"
    if status.get("index", -1) >= 0:
        return f"{status['role']} {status['index']}"
    return process.role


def _gone(process: Process) -> str:
    if process.exit_code is not None:
        return "done" if process.exit_code == 0 else f"exit {process.exit_code}"
    return "no answer" if process.admin else "starting"


def _state(status: Mapping[str, Any]) -> str:
    if not status.get("ready"):
        return "starting"
    missing, since = status.get("missing") or [], status.get("waiting_seconds", 0.0)
    if not missing or since < LONG:
        return "running"
    return f"waits for trainer {', '.join(map(str, missing[:3]))}: {since:.0f} s"


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
    with _screen(out or sys.stdout, once) as draw:
        while True:
            asked = ask_all(find())
            if (rows := rows_of(asked)) != shown or (out or sys.stdout).isatty():
                draw(rows)
            shown = rows
            if once or all(p.exit_code is not None for p, _ in asked):
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
    made = table_of(COLUMNS, rows, RIGHT, lambda row: "red" if row[1].startswith(DEAD) else "")
    made.title = f"bireme top  {time.strftime('%H:%M:%S')}  Ctrl-C to quit"
    made.title_justify = "left"
    return made
