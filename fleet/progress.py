"""Progress reports to the launcher: JSON lines through a pipe.

Without a launcher, reports are dropped. Reporting never blocks: reports are dropped if the pipe is
full.
"""

import json
import os
import time
from typing import Any

from bireme.monitoring.counters import tally

__all__ = ["VARIABLE", "report", "report_admin"]

VARIABLE = "BIREME_PROGRESS_FD"

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
) -> None:
    """Show these figures in the launcher's table; `samples` counts all samples since the start."""
    figures = {"step": step, "loss": loss, "accuracy": accuracy, "samples": samples}
    row = {
        k: float(v) if k in ("loss", "accuracy") else int(v)
        for k, v in figures.items()
        if v is not None
    }
    tally.gauges.update({f"bireme_{k}": row[k] for k in ("loss", "accuracy") if k in row})
    _tell(row)


def report_admin(endpoint: str) -> None:
    """Tell the launcher the endpoint of the admin port."""
    _tell({"admin": endpoint})


def _tell(row: dict[str, Any]) -> None:
    global _descriptor
    if _descriptor is None:
        _descriptor = _open()
    if _descriptor < 0:
        return
    line = json.dumps({**row, "time": time.monotonic()}) + "\n"
    try:
        os.write(_descriptor, line.encode())  # shorter than PIPE_BUF, so the write is atomic
    except BlockingIOError:
        return
    except OSError:
        _descriptor = -1
