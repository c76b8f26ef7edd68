"""Jobs of real processes on loopback; every process is ended with the test."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, until

JOB = Path(__file__).with_name("job.py")


class Process:
    """One role with its log."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as file:
            self.popen = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait(self, timeout: float = PATIENCE) -> int:
        return self.popen.wait(timeout)

    def until(self, word: str) -> None:
        """Wait until the log says `word`."""

        def said() -> bool:
            ended = self.popen.poll() is not None
            found = word in self.text
            assert found or not ended, self.text
            return found

        until(said, lambda: f"{word!r} never came:\n{self.text}")


class Job:
    """Starts roles; `endpoints` are free ports, kept until the servers take them."""

    def __init__(self, folder: Path, servers: int, trainers: int) -> None:
        self.folder = folder
        self.trainers = trainers
        self.processes: dict[str, Process] = {}
        self._held = [self._hold() for _ in range(servers)]
        ports = [held.getsockname()[1] for held in self._held]
        self.endpoints = [f"127.0.0.1:{port}" for port in ports]
        self.reserved = ",".join(map(str, ports))

    @staticmethod
    def _hold() -> socket.socket:
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        return held

    def start(self, role: str, *more: str, **env: str) -> Process:
        """One role of `job.py`."""
        given = [role, ",".join(self.endpoints), str(self.trainers), *more]
        return self.start_other(role, [sys.executable, JOB, *given], **env)

    def start_run(self, role: str, *more: str, **env: str) -> Process:
        """One role of `job.py` under `bireme run`."""
        given = [role, ",".join(self.endpoints), str(self.trainers), *more]
        command = [sys.executable, "-m", "bireme", "run", str(JOB), *given]
        return self.start_other(role, command, **env)

    def start_other(self, role: str, command: list[str | Path], **env: str) -> Process:
        """A role that another command plays."""
        reserved = {"BIREME_RESERVED_PORTS": self.reserved, "OMP_NUM_THREADS": "1"}
        log = self.folder / f"{role.replace(':', '_')}.log"
        words = [str(word) for word in command]
        self.processes[role] = process = Process(words, log, {**os.environ, **reserved, **env})
        return process

    def start_all(self, *more: str, **env: str) -> dict[str, Process]:
        for role in (*self.endpoints, *map(str, range(self.trainers))):
            self.start(role, *more, **env)
        return self.processes

    def kill(self, role: str) -> None:
        """End one role as a crash would."""
        popen = self.processes.pop(role).popen
        popen.kill()
        popen.wait()

    def end(self) -> None:
        for process in self.processes.values():
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait()
        for held in self._held:
            held.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator["type[Job]"]:
    """Makes jobs: `job(servers, trainers)`."""
    made: list[Job] = []

    def make(servers: int = 1, trainers: int = 2) -> Job:
        made.append(Job(tmp_path, servers, trainers))
        return made[-1]

    yield make  # type: ignore[misc]  # used as a factory only
    for one in made:
        one.end()
