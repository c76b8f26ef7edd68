"""One started process: its log, its reports, its end. Knows how to end a group, not when."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import progress
from .launch import Seat

__all__ = ["Child"]


class Child:
    """A running seat. `exit_code` is None while it runs, and 128 + n after signal n."""

    def __init__(
        self, seat: Seat, command: Sequence[str], environment: Mapping[str, str], log_dir: Path
    ) -> None:
        self.seat = seat
        self.log = log_dir / seat.log
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
            with open(self.log, "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-u", "-m", "bireme.fleet.script", *command],
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
        """Take in what the process has reported; False when it has closed the pipe."""
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
        if row.keys() <= {"time"}:  # it told of itself, not of its work
            return
        row = {name: float(value) for name, value in row.items()}
        if "samples" in row and "samples" in self.figures:
            elapsed = row["time"] - self.figures["time"]
            rate = (row["samples"] - self.figures["samples"]) / elapsed if elapsed > 0 else 0.0
            self.speed = rate if self.speed is None else 0.9 * self.speed + 0.1 * rate
        self.figures.update(row)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and everything it started; harmless when they are gone."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def reap(self) -> None:
        """Collect the exit code of a process that has ended, and end what it left behind.

        Its number is not free before `wait`, so the group signalled here is still its own.
        """
        self.signal_group(signal.SIGKILL)
        code = self._process.wait()
        self.exit_code = code if code >= 0 else 128 - code
        os.close(self.life)

    def ended(self) -> bool:
        """Whether the process has ended by now; collects it when it has."""
        if self.running and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.reap()
        return not self.running

    def tail(self, lines: int = 20) -> list[str]:
        """The last lines of its log."""
        with open(self.log, "rb") as file:
            file.seek(max(0, os.path.getsize(self.log) - 200 * lines))
            return file.read().decode(errors="replace").splitlines()[-lines:]

    def last_word(self) -> str:
        """What it said last: its error message if it ended with one, otherwise its last line."""
        lines = self.tail(6)
        errors = [line for line in lines if line.startswith("bireme: ")]
        return (errors or lines or [""])[-1].removeprefix("bireme: ")

    def close(self) -> None:
        os.close(self.reports)
