"""Runs a user's script by the commands a user has: as one process, and as a cluster.

Nothing of a job may stay behind it: `leftovers` says what did.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from bireme.errors import ConfigError, PeerError

from ..launcher.job import ROLE_VARIABLES
from ..step_recorder import VARIABLE, Request
from ..telemetry import job_file

__all__ = ["Cluster", "Size", "alone", "environment", "last", "leftovers", "tail"]

Process = job_file.Process
_ENDPOINT = re.compile(r"^(?:server|trainer) \d+: (\S+):(\d+), log", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Size:
    """How many processes a cluster has."""

    servers: int
    trainers: int
    mode: str = "pserver"

    def __str__(self) -> str:
        servers = "" if self.mode == "nccl2" else f"{self.servers} servers, "
        return f"{servers}{self.trainers} trainers"

    def options(self) -> list[str]:
        sizes = ["--servers", str(self.servers), "--trainers", str(self.trainers)]
        return [*sizes, "--mode", self.mode]


def environment(request: Request, **more: str) -> dict[str, str]:
    """This process's environment without a role, for one that records."""
    dropped = {*ROLE_VARIABLES, VARIABLE}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **request.environment(), **more}


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, indented."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(f"  | {line}" for line in text.splitlines()[-lines:])


def alone(script: str, arguments: Sequence[str], request: Request, log: Path) -> None:
    """Run the script as one process, to its end.

    Raises:
        ConfigError: it failed.
    """
    command = [sys.executable, "-m", "bireme", "run", script, *arguments]
    with log.open("wb") as out:
        code = subprocess.call(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(request)
        )
    if code:
        raise ConfigError(
            f"{script} as one process ended with exit code {code}",
            where=f"the end of {log}:\n{tail(log)}",
            hint="without variables of a role the script must train locally; see bireme run",
        )


class Started(Protocol):
    """What is needed of `subprocess.Popen`."""

    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...
    def send_signal(self, number: int) -> None: ...


class Cluster:
    """A job under `bireme launch`, watched from outside."""

    def __init__(
        self,
        script: str,
        arguments: Sequence[str],
        size: Size,
        folder: Path,
        env: dict[str, str],
        options: Sequence[str] = (),
        start: Callable[..., Started] = subprocess.Popen,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "launcher.log"
        self.seen: dict[tuple[int, float], Process] = {}  # by pid and time of its start
        (folder / job_file.NAME).unlink(missing_ok=True)
        words = ["launch", *size.options(), "--log-dir", str(folder), *options, script, *arguments]
        with self.log.open("wb") as out:
            self._launcher = start(
                [sys.executable, "-m", "bireme", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=env,
                process_group=0,  # Ctrl-C reaches the command first, which ends it in order
            )

    def poll(self) -> int | None:
        """The launcher's exit code, once it has ended."""
        return self._launcher.poll()

    def processes(self) -> list[Process]:
        """The processes that run now."""
        try:
            found = job_file.read(self.folder)
        except ConfigError:  # not started yet
            return []
        running = [p for p in found if p.pid and p.exit_code is None]
        known = {pid for pid, _ in self.seen}
        for process in running:
            if process.pid not in known and (began := _began(process.pid)):
                self.seen[process.pid, began] = process
        return running

    def endpoints(self) -> list[tuple[str, int]]:
        """Host and port of every process, as the launcher announced them."""
        text = self.log.read_text(errors="replace")
        return [(host, int(port)) for host, port in _ENDPOINT.findall(text)]

    def wait(self, seconds: float) -> int:
        """The launcher's exit code.

        Raises:
            PeerError: the job did not end in time.
        """
        try:
            return self._launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            raise PeerError(
                f"the job did not end within {seconds:.0f} s", where=f"logs: {self.folder}"
            ) from None

    def kill(self) -> None:
        """End the job as a loss of power does: its processes die with their launcher."""
        self._launcher.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Ask the launcher to end the job, as a scheduler does; kill it if it does not."""
        self.processes()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._launcher.poll() is None:
                self._launcher.send_signal(number)
                try:
                    self._launcher.wait(20)
                except subprocess.TimeoutExpired:
                    continue

    @contextmanager
    def ended(self) -> Iterator["Cluster"]:
        """End the job with the block."""
        try:
            yield self
        finally:
            self.end()


def last(cluster: Cluster) -> list[Process]:
    """The processes of the job as the launcher last told of them, ended ones with exit codes."""
    return list(job_file.read(cluster.folder))


def leftovers(cluster: Cluster, patience: float = 5.0) -> list[str]:
    """What is left of an ended job: processes, and ports on which somebody listens."""
    until = time.monotonic() + patience
    while any(left := (_alive(cluster), _bound(cluster))):
        if time.monotonic() > until:
            alive, bound = left
            found = [f"{p.role} {p.index}, pid {p.pid}, still runs" for p in alive]
            return found + [f"{host}:{port} is still bound" for host, port in bound]
        time.sleep(0.02)
    return []


def _alive(cluster: Cluster) -> list[Process]:
    return [p for (pid, began), p in cluster.seen.items() if _began(pid) == began]


def _began(pid: int) -> float:
    """When the process with this pid was started; 0 if none runs."""
    try:
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return 0.0


def _bound(cluster: Cluster) -> list[tuple[str, int]]:
    found = []
    for host, port in cluster.endpoints():
        with socket.socket() as probe:
            probe.settimeout(1.0)
            if probe.connect_ex((host, port)) == 0:
                found.append((host, port))
    return found
