"""FLAGS_log_json: records of `logging` become lines of JSON, and so does the error that ends the
process, which is one line with all of its text.

What a script prints is put into lines by its parent (`log_relay`).
"""

import logging
import os
import traceback
from types import TracebackType

from bireme import flags, logs
from bireme.monitoring.counters import tally

from ..log_relay import as_json
from . import uncaught

__all__ = ["install"]


class _Lines(logging.Formatter):
    """A record as an object of JSON; `error` is the class of an error that ends the process."""

    def format(self, record: logging.LogRecord) -> str:
        known = {"level": record.levelname.lower(), "role": tally.role, "index": tally.index}
        known |= {"step": tally.steps, "pid": os.getpid()}
        error = getattr(record, "error", None)
        known |= {"logger": record.name} if error is None else {"error": error}
        return as_json(record.created, super().format(record), **known)


def install() -> None:
    """Write records as JSON if the flag says so."""
    if not flags.get("log_json"):
        return
    logs.use(_Lines())
    if logging.lastResort is not None:  # which takes records that no handler does
        logging.lastResort.setFormatter(_Lines())
    uncaught.print_tracebacks_by(_as_one_line)


def _as_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    logs.show_error(text.rstrip(), error)
