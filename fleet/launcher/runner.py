"""Where the processes of a job run: the port, and this machine."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from bireme import failures
from bireme.paths import end_of

from .. import progress
from . import keeper
from .job import Job, Seat, arguments_of, inherited
from .log_folder import opened
from .ports import Reservation

__all__ = ["Files", "LocalMachine", "LocalProcess", "Runner", "Started"]


class Files(NamedTuple):
    """What a process leaves: its log, to which it appends, the record of its error, if it fails,
    and its curves, if they are kept.
    """

    log: Path
    error: Path
    curves: Path | None


class Started(Protocol):
    """A process that has been started.

    `life` becomes readable when it has exited, `reports` is what it writes to its launcher: both
    are descriptors, which the owner closes.
    """

    life: int
    reports: int

    @property
    def pid(self) -> int: ...

    def signal(self, number: signal.Signals) -> None:
        """Signal it and its descendants; nothing happens if they have exited."""

    def wait(self) -> int:
        """Its exit code once `life` is readable or it was killed; -n after signal n."""


class Runner(Protocol):
    """Starts the processes of a job."""

    def reserved(self, job: Job) -> AbstractContextManager[Sequence[str]]:
        """Endpoints for the job during the block: of servers, of trainers, and where trainers meet
        if there are no servers.
        """

    def start(self, job: Job, seat: Seat, environ: Mapping[str, str], files: Files) -> Started: ...


class LocalMachine:
    """Processes of this machine, which die with this one."""

    @contextmanager
    def reserved(self, job: Job) -> Iterator[Sequence[str]]:
        listed = [int(endpoint.rpartition(":")[2]) for endpoint in job.own_endpoints]
        with Reservation(job.port_count, job.host, job.start_port, listed) as reservation:
            yield reservation.endpoints

    def start(self, job: Job, seat: Seat, environ: Mapping[str, str], files: Files) -> Started:
        command = ["-m", job.script] if job.module else [job.script]
        command += arguments_of(job, seat)
        base = inherited(environ, job.size, job.admin)
        return LocalProcess(command, {**base, **seat.variables}, files)


class LocalProcess:
    """`bireme run` below a keeper, which ends whatever it starts with it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], files: Files) -> None:
        self.reports, writer = os.pipe()
        control, self._control = os.pipe()
        self._pids, pids = os.pipe()
        os.set_blocking(self.reports, False)
        variables = {**environ, progress.VARIABLE: str(writer)}
        variables[failures.VARIABLE] = str(files.error.absolute())
        if files.curves:
            variables[progress.CURVES] = str(files.curves.absolute())
        keep = [sys.executable, "-I", "-S", keeper.__file__, str(control), str(pids)]
        run = [sys.executable, "-u", "-m", "bireme.fleet.scripts.script"]
        try:
            with opened(end_of, files.log) as log:
                self._process = subprocess.Popen(
                    [*keep, *run, *command],
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(writer, control, pids),
                    process_group=0,
                )
        finally:
            for descriptor in (writer, control, pids):
                os.close(descriptor)
        self.life = os.pidfd_open(self._process.pid)

    @functools.cached_property
    def pid(self) -> int:
        """Of the process itself, not of its keeper, which knows it."""
        with open(self._pids, "rb") as told:
            return int(told.read() or 0)

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL ends the keeper as well, if it comes twice."""
        if number != signal.SIGKILL:
            with contextlib.suppress(OSError):
                os.write(self._control, bytes([number]))
        elif self._control >= 0:
            self._release()
        else:
            self._process.kill()

    def _release(self) -> None:
        """The keeper kills all when nothing can come through the pipe any more."""
        control, self._control = self._control, -1
        os.close(control)

    def wait(self) -> int:
        code = self._process.wait()
        _ = self.pid  # whose pipe is closed by this
        if self._control >= 0:
            self._release()
        return code
