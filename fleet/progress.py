"""Progress reports to the launcher: JSON lines through a pipe.

A script may report figures of its own; `follow` reports what the runtime counts. Without a
launcher, reports are dropped. Reporting never blocks: reports are dropped if the pipe is full.
"""

import atexit
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from bireme.monitoring.counters import tally
from bireme.paths import new_file

__all__ = ["CURVES", "VARIABLE", "follow", "report", "report_admin"]

VARIABLE = "BIREME_PROGRESS_FD"
CURVES = "BIREME_CURVES"  # the file for this process's curves
PAUSE = 0.5  # seconds between two reports of what is counted

_descriptor: int | None = None


def _open() -> int:
    """The pipe's descriptor, set non-blocking on first use; -1 without a launcher."""
    text = os.environ.get(VARIABLE, "")
    if not text.isdecimal():
        return -1
    try:
        os.set_blocking(int(text), False)
        os.set_inheritable(int(text), False)
    except OSError:
        return -1
    return int(text)


def report(
    step: int | None = None,
    loss: float | None = None,
    accuracy: float | None = None,
    samples: int | None = None,
    total: int | None = None,
    **metrics: float,
) -> None:
    """Show these figures in the launcher's table; `samples` counts all samples since the start,
    `total` is the number of steps there will be. Other metrics, by any name, appear in the
    dashboard and at the admin port.
    """
    figures = {"step": step, "loss": loss, "accuracy": accuracy, "samples": samples, "total": total}
    row = {
        k: float(v) if k in ("loss", "accuracy") else int(v)
        for k, v in figures.items()
        if v is not None
    }
    tally.metrics.update({name: float(value) for name, value in metrics.items()})
    tally.gauges.update({f"bireme_{k}": row[k] for k in ("loss", "accuracy") if k in row})
    _tell(row)


def report_admin(endpoint: str) -> None:
    """Tell the launcher the endpoint of the admin port."""
    _tell({"admin": endpoint})


def follow() -> None:
    """Report steps, samples and loss as the runtime counts them, from a thread, and once more at
    the end; keep the file of curves up to date.
    """
    if _told() < 0:
        return
    thread = threading.Thread(target=_follow, name="progress", daemon=True)
    thread.start()
    atexit.register(_report_counts, os.getpid())


def _follow() -> None:
    sleep = threading.Event()
    while not sleep.wait(PAUSE):
        _report_counts(os.getpid())


def _report_counts(process: int) -> None:
    if process != os.getpid():  # a fork of the one that reports
        return
    counted: dict[str, Any] = {}
    for source in (tally, *tally.sources):
        counted.update(source.status())
    row = {k: counted[k] for k in ("step", "samples", "loss", "accuracy") if k in counted}
    if row.get("step"):
        _tell({"counted": row, "role": tally.role})
    path = os.environ.get(CURVES, "")
    if path and (table := tally.curves.csv()):
        _write(Path(path), table)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    try:
        with new_file(draft) as file:
            file.write(text.encode())
        draft.replace(path)
    except OSError:  # a full disk stops no training
        os.environ.pop(CURVES, None)


def _told() -> int:
    global _descriptor
    if _descriptor is None:
        _descriptor = _open()
    return _descriptor


def _tell(row: dict[str, Any]) -> None:
    global _descriptor
    if _told() < 0:
        return
    line = json.dumps({**row, "time": time.monotonic()}) + "\n"
    try:
        os.write(_told(), line.encode())  # shorter than PIPE_BUF, so the write is atomic
    except BlockingIOError:
        return
    except OSError:
        _descriptor = -1
