"""A child process: its log, its reports, its exit."""

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bireme.failures import Failure, read
from bireme.paths import beginning_of

from ..log_lines import texts_of
from .job import Seat
from .log_folder import begun
from .pace import Pace
from .runner import Files, Started

__all__ = ["Child"]

LONGEST_REPORT = 1 << 16  # bytes


class Child:
    """A process of the job. `exit_code` is None while it runs, and 128 + n after signal n."""

    def __init__(
        self,
        seat: Seat,
        log_dir: Path,
        start: Callable[[Files], Started],
        append: bool = False,
        curves: bool = False,
    ) -> None:
        self.seat = seat
        self.log = log_dir / seat.log
        self.log_begin = 0  # where this run's part of the log begins
        self.exit_code: int | None = None
        self.told = False  # to end, by the launcher
        self.killed = False  # by a signal that it could not answer
        self.admin = ""
        self.curves = log_dir / f"curves.{seat.role}.{seat.index}.csv" if curves else None
        self.figures: dict[str, float] = {}  # that the script reports
        self.counted: dict[str, float] = {}  # by the runtime
        self.role = ""  # that it plays, once it has counted a step
        self.failure: Failure | None = None  # that it recorded
        self.pace = Pace()
        self.total = 0.0  # steps there will be, if known
        self.total_is_guess = False
        self._rest = b""
        self._cut = False
        self.notices: list[str] = []  # for the user, to be shown once
        self._record = log_dir / f"error.{seat.role}.{seat.index}.json"
        with contextlib.suppress(OSError):  # the process may do without
            self.log_begin = begun(self.log, append)
            for path in filter(None, (self._record, self.curves)):
                path.unlink(missing_ok=True)
        self._process = start(Files(self.log, self._record, self.curves))
        self.life, self.reports = self._process.life, self._process.reports

    @property
    def running(self) -> bool:
        return self.exit_code is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_reports(self) -> bool:
        """Read the process's reports; False once it has closed the pipe."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.reports, 1 << 16)
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with contextlib.suppress(ValueError, TypeError):
                    self._take(json.loads(line))
            self._rest = self._rest[:LONGEST_REPORT]
        return True

    def _take(self, row: dict[str, Any]) -> None:
        now = float(row.pop("time"))
        self.admin = str(row.pop("admin", self.admin))
        self.role = str(row.pop("role", self.role))
        self.counted.update(row.pop("counted", {}))
        if (reason := row.pop("cut", "")) and not self._cut:
            self._cut = True
            self.notices.append(f"{self.seat}: its log {self.log} is cut: {reason}; it continues")
        self.figures.update({name: float(value) for name, value in row.items()})
        seen = self.seen
        self.pace.note(now, {name: seen[name] for name in ("step", "samples") if name in seen})

    @property
    def seen(self) -> dict[str, float]:
        """The latest figures: the script's own, and what the runtime counts of the rest."""
        return {**self.counted, **self.figures}

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and its descendants; does nothing if they have exited."""
        if self.running:
            self._process.signal(number)

    def reap(self) -> None:
        """Collect the exit code of a process that has exited or was killed."""
        code = self._process.wait()
        self.killed = code < 0
        self.exit_code = code if code >= 0 else 128 - code
        self.failure = read(self._record)
        os.close(self.life)

    @property
    def error(self) -> str:
        """The error that ended it, in one line; "" if it could not record any."""
        return self.failure.text if self.failure else ""

    def ended(self) -> bool:
        """Whether the process has exited; if so, it is reaped."""
        if self.running and select.select([self.life], [], [], 0)[0]:
            self.reap()
        return not self.running

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        try:
            with beginning_of(self.log) as file:
                file.seek(max(self.log_begin, os.path.getsize(self.log) - 200 * lines))
                text = file.read().decode(errors="replace")
        except OSError:
            return []
        return list(texts_of(text.splitlines()))[-lines:]

    def last_word(self) -> str:
        """The error that ended it; of one without a record, the last line of its log."""
        return self.error or (self.tail(1) or [""])[-1].removeprefix("bireme: ")

    def close(self) -> None:
        os.close(self.reports)
