"""`bireme top`: one row per process of a cluster, from their admin ports.

Asking, reckoning and drawing are apart: statuses come in as dictionaries, rows are text, and the
screen is told only what to show. A process that does not answer has a row that says so.
"""

import http.client
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TextIO

from .job_file import Process

__all__ = ["Asked", "ask_all", "named", "show", "table"]

COLUMNS = ("process", "state", "step", "samples/s", "wait", "stale", "in/s", "out/s", "last error")
LEFT = {"process", "state", "last error"}
PATIENCE = 2.0  # seconds for one answer
LONG = 1.0  # seconds of waiting that are worth a word
NONE = "-"


class Asked(NamedTuple):
    """A process, and what it said: nothing if it did not answer."""

    process: Process
    status: Mapping[str, Any] | None


# -- asking --------------------------------------------------------------------------------------
def named(endpoints: Sequence[str]) -> tuple[Process, ...]:
    """Processes that are known by their admin ports only."""
    return tuple(Process(endpoint, -1, admin=endpoint) for endpoint in endpoints)


def ask_all(processes: Sequence[Process]) -> list[Asked]:
    """Every process's status, asked for side by side."""
    with ThreadPoolExecutor(max(1, min(32, len(processes)))) as pool:
        return [Asked(p, s) for p, s in zip(processes, pool.map(_ask, processes), strict=True)]


def _ask(process: Process) -> Mapping[str, Any] | None:
    if not process.admin or process.exit_code is not None:
        return None
    connection = http.client.HTTPConnection(process.admin, timeout=PATIENCE)
    try:
        connection.request("GET", "/status")
        found = json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found if isinstance(found, dict) else None


# -- reckoning -----------------------------------------------------------------------------------
def table(asked: Sequence[Asked]) -> list[str]:
    """A header and a row per process, in aligned columns."""
    stale = _staleness(asked)
    rows = [COLUMNS, *(_row(one, stale) for one in asked)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for name, cell, width in zip(COLUMNS, row, widths, strict=True)
    ]
    return "  ".join(cells).rstrip()


def _staleness(asked: Sequence[Asked]) -> dict[int, float]:
    """Trainer -> steps by which its gradients are late, as the servers see it."""
    seen: dict[int, list[float]] = {}
    for _, status in asked:
        for trainer, steps in ((status or {}).get("staleness") or {}).items():
            seen.setdefault(int(trainer), []).append(float(steps))
    return {trainer: sum(steps) / len(steps) for trainer, steps in seen.items()}


def _row(asked: Asked, stale: Mapping[int, float]) -> tuple[str, ...]:
    process, status = asked
    if status is None:
        return (_name(process, {}), _gone(process), *[NONE] * 6, "")
    rates = status.get("rates", {})
    server = status.get("role") == "server"
    own = stale.values() if server else [s for t, s in stale.items() if t == status.get("index")]
    return (
        _name(process, status),
        _state(status),
        f"{status.get('step', 0):,}",
        NONE if server else f"{rates.get('samples_per_second', 0):,.0f}",
        _seconds(rates.get("wait_seconds", 0.0)),
        f"{sum(own) / len(own):.1f}" if own else NONE,
        _bytes(rates.get("received_bytes_per_second", 0.0)),
        _bytes(rates.get("sent_bytes_per_second", 0.0)),
        str(status.get("last_error", "")),
    )


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
    """Print one table, or keep one up to date until everybody has ended or Ctrl-C."""
    out = out or sys.stdout
    live = out.isatty() and not once
    with _screen(out, live) as draw:
        while True:
            asked = ask_all(find())
            draw(table(asked))
            if once or all(p.exit_code is not None for p, _ in asked):
                return
            time.sleep(interval)


Draw = Callable[[list[str]], None]


@contextmanager
def _screen(out: TextIO, live: bool) -> Iterator[Draw]:
    """How to draw a table: in place on a terminal, one below the other elsewhere."""
    if not live:
        yield lambda lines: print(*lines, sep="\n", file=out, flush=True)
        return
    drawn = 0

    def draw(lines: list[str]) -> None:
        nonlocal drawn
        width, height = shutil.get_terminal_size()
        shown = [_painted(line[:width], i) for i, line in enumerate(lines[: height - 2])]
        clock = time.strftime("%H:%M:%S")
        head = f"bireme top  {clock}  Ctrl-C leaves"[:width]
        up = f"\x1b[{drawn}F" if drawn else ""
        # One write of whole lines, each cleared only behind its end: nothing ever blinks.
        out.write(up + "".join(f"{line}\x1b[K\n" for line in [head, *shown]) + "\x1b[J")
        out.flush()
        drawn = len(shown) + 1

    out.write("\x1b[?25l")
    try:
        yield draw
    except KeyboardInterrupt:
        pass
    finally:
        out.write("\x1b[?25h")
        out.flush()


def _painted(line: str, row: int) -> str:
    """The header bold, rows of the dead red, where the user has not asked for no colour."""
    if os.environ.get("NO_COLOR"):
        return line
    if row == 0:
        return f"\x1b[1m{line}\x1b[0m"
    dead = "no answer" in line or " exit " in line
    return f"\x1b[31m{line}\x1b[0m" if dead else line
