"""Trainers that reach their servers, and ranks that reach rank 0, through a proxy that restarts."""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bireme.job_token import TOKEN, new_token
from tests.support.restarting_proxy import NEAR, RestartingProxy
from tests.support.waiting import until

from .outcomes import PATIENCE, Outcome

__all__ = ["ProxyCase", "cases"]

JOB = Path(__file__).with_name("proxied_job.py")
HEARTBEAT = 10.0
SECONDS = (0.3, 1.0, 3.0, 8.0)
RESTARTS = 3
MODES = ("sync", "async", "dc-asgd", "half-async", "queued", "geo")
WORDS = {"queued": "communicator"}  # what the other cases call it
CARRIERS = {
    "tcp": {"FLAGS_rpc_shared_memory": "0"},
    "grpc": {"FLAGS_rpc_shared_memory": "0", "FLAGS_rpc_stream": "0"},
    "unix": {},
}
MEANS = ("sync", "geo")  # modes that divide what trainers bring by their number


@dataclass(frozen=True, slots=True)
class ProxyCase:
    """The proxy refuses connections for so many seconds, every ten seconds."""

    mode: str
    carrier: str
    seconds: float

    @property
    def name(self) -> str:
        return f"proxy/{WORDS.get(self.mode, self.mode)}/{self.carrier}/{self.seconds:g}"

    @property
    def trainers(self) -> int:
        return 1 if self.mode == "dc-asgd" else 2  # what others push changes what a push does

    def run(self, folder: Path) -> Outcome:
        """Do it to a job in `folder`."""
        outcome = Outcome("the job goes on, and every push takes effect once")
        with ExitStack() as stack:
            job = _Job(self, folder)
            stack.callback(job.end)
            stack.callback(lambda: (folder / "enough").touch())
            began = time.monotonic()
            outcome.problems += job.run(stack)
            outcome.ended["job"] = time.monotonic() - began
        return outcome


def cases() -> list[ProxyCase]:
    pairs = [(mode, "tcp") for mode in MODES]
    pairs += [("sync", "grpc"), ("sync", "unix"), ("all-reduce", "unix")]
    return [ProxyCase(*pair, seconds) for pair in pairs for seconds in SECONDS]


@dataclass
class _Job:
    """The processes of one case."""

    case: ProxyCase
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    token: str = field(default_factory=new_token)

    def run(self, stack: ExitStack) -> list[str]:
        """To the end; what was wrong."""
        reduces = self.case.mode == "all-reduce"
        ports = [_free_port() for _ in range(1 if reduces else 2)]
        far = [f"127.0.0.1:{port}" for port in ports]
        near = [f"{NEAR}:{port}" for port in ports]
        before = [("0", far)] if reduces else [(endpoint, far) for endpoint in far]
        for role, endpoints in before:
            self._start(role, endpoints)
        listening = set().union(
            *(_ports_of(self.processes[r], p) for (r, _), p in zip(before, ports, strict=True))
        )
        proxy = RestartingProxy(listening, self.case.seconds, self._restarted)
        stack.callback(proxy.close)
        for trainer in range(1 if reduces else 0, self.case.trainers):
            self._start(str(trainer), near)
        for trainer in range(self.case.trainers):
            self._until_step(str(trainer))
        proxy.restart()
        until = time.monotonic() + 10 * RESTARTS + PATIENCE
        codes = {r: p.wait(max(0.1, until - time.monotonic())) for r, p in self.processes.items()}
        wrong = [f"{role}: {code}: {self._tail(role)}" for role, code in codes.items() if code]
        return wrong or list(self._differences())

    def _start(self, role: str, endpoints: list[str]) -> None:
        flags = {**CARRIERS[self.case.carrier], "FLAGS_heartbeat_seconds": str(HEARTBEAT)}
        words = [self.case.mode, role, ",".join(endpoints), str(self.case.trainers)]
        with self._log(role).open("wb") as log:
            self.processes[role] = subprocess.Popen(
                [sys.executable, str(JOB), *words, str(self.folder)],
                stdout=log,
                stderr=log,
                env={**os.environ, TOKEN: self.token, "OMP_NUM_THREADS": "1", **flags},
            )

    def _log(self, role: str) -> Path:
        return self.folder / f"{role.replace(':', '-')}.log"

    def _tail(self, role: str) -> str:
        return self._log(role).read_text()[-600:]

    def _until_step(self, role: str) -> None:
        def stepped() -> bool:
            assert self.processes[role].poll() is None, self._tail(role)
            return "step" in self._log(role).read_text()

        until(stepped, lambda: self._tail(role))

    def _restarted(self, count: int) -> None:
        if count == RESTARTS:
            (self.folder / "enough").touch()

    def _differences(self) -> Iterator[str]:
        """What the parameters say of pushes that were lost, or applied twice."""
        fed: Any = importlib.import_module("tests.faults.proxied_job").fed
        total = np.zeros(4)
        for trainer in range(self.case.trainers):
            steps = json.loads((self.folder / f"trainer-{trainer}.json").read_text())
            total -= sum(fed(step, trainer).reshape(-1) for step in range(steps))
        if self.case.mode in MEANS:
            total /= self.case.trainers
        found = {}
        for path in self.folder.glob("server-*.json"):
            found.update(json.loads(path.read_text()))
        for name in ("w", "v"):
            if found.get(name) != total.tolist():
                yield f"{name} is {found.get(name)}, and should be {total.tolist()}"

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ports_of(process: subprocess.Popen[bytes], port: int) -> set[int]:
    """The ports that a process listens at, as soon as `port` is one of them."""

    def ports() -> set[int]:
        assert process.poll() is None, f"nothing listens at port {port}"
        found = psutil.Process(process.pid).net_connections("tcp")
        listening = {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
        return listening if port in listening else set()

    return until(ports)
