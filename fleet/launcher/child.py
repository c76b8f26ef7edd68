"""A child process: its log, its reports, its exit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import progress
from .job import Seat

__all__ = ["Child"]


class Child:
    """A started process. `exit_code` is None while it runs, and 128 + n after signal n."""

    def __init__(
        self,
        seat: Seat,
        command: Sequence[str],
        environment: Mapping[str, str],
        log_dir: Path,
        append: bool = False,
    ) -> None:
        self.seat = seat
        self.log = log_dir / seat.log
        # where this run's part of the log begins
        self.log_begin = self.log.stat().st_size if append and self.log.exists() else 0
        self.exit_code: int | None = None
        self.admin = ""
        self.figures: dict[str, float] = {}
        self.speed: float | None = None
        self._rest = b""
        self.reports, self._process = self._start(command, environment)
        self.life = os.pidfd_open(self._process.pid)

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[int, "subprocess.Popen[bytes]"]:
        reports, writer = os.pipe()
        os.set_blocking(reports, False)
        variables = {**environment, **self.seat.variables, progress.VARIABLE: str(writer)}
        try:
            with open(self.log, "ab" if self.log_begin else "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-u", "-m", "bireme.fleet.scripts.script", *command],
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writer,),
                    process_group=0,
                )
        finally:
            os.close(writer)
        return reports, process

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
        return True

    def _take(self, row: dict[str, Any]) -> None:
        self.admin = str(row.pop("admin", self.admin))
        if row.keys() <= {"time"}:  # about the process, not its progress
            return
        row = {name: float(value) for name, value in row.items()}
        if "samples" in row and "samples" in self.figures:
            elapsed = row["time"] - self.figures["time"]
            rate = (row["samples"] - self.figures["samples"]) / elapsed if elapsed > 0 else 0.0
            self.speed = rate if self.speed is None else 0.9 * self.speed + 0.1 * rate
        self.figures.update(row)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and its descendants; does nothing if they have exited."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def reap(self) -> None:
        """Collect the exit code of a process that has exited, and kill its remaining descendants.

        Its pid is not reused before `wait`, so the group signalled here is still its own.
        """
        self.signal_group(signal.SIGKILL)
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        os.close(self.life)

    def ended(self) -> bool:
        """Whether the process has exited; if so, it is reaped."""
        if self.running and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.reap()
        return not self.running

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        with open(self.log, "rb") as file:
            file.seek(max(self.log_begin, os.path.getsize(self.log) - 200 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]

    def last_word(self) -> str:
        """Its error message if it exited with one, else its last line."""
        lines = self.tail(6)
        errors = [line for line in lines if line.startswith("bireme: ")]
        return (errors or lines or [""])[-1].removeprefix("bireme: ")

    def close(self) -> None:
        os.close(self.reports)
