"""Two hosts in network namespaces, joined by one link that can fail.

A server and trainer 0 live on one, trainer 1 on the other. Needs root and iproute2.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bireme.fleet.chaos.comparison import last_values
from bireme.fleet.chaos.jobs import environment
from bireme.fleet.step_recorder import LAST, Request, Values, read_values, steps_done
from bireme.job_token import TOKEN, new_token
from tests.support.waiting import until

from .outcomes import HEARTBEAT, PATIENCE, Outcome

__all__ = ["Hosts", "Link", "LinkCase", "cases", "missing", "two_hosts"]

JOB = Path(__file__).with_name("matrix_job.py")
SERVER, OTHER = "10.77.0.1", "10.77.0.2"
NOBODY = "02:00:00:00:00:01"  # a hardware address that no interface has
STEP, STEPS = 5, 30


def missing() -> str:
    """Why there can be no two hosts here; empty if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "tc", "ss"):
        if shutil.which(tool) is None:
            return f"{tool} of iproute2 is not installed"
    name = f"bireme-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"cannot make network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Link:
    """The far host's end of the link."""

    def __init__(self, namespace: str, port: str) -> None:
        self._namespace, self._port = namespace, port

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._ip("link", "set", self._port, "down")

    def mend(self) -> None:
        self._ip("link", "set", self._port, "up")

    def cut_one_way(self) -> None:
        """What the far host sends is delivered to nobody; it still hears."""
        self._ip(
            "neigh", "replace", SERVER, "lladdr", NOBODY, "dev", self._port, "nud", "permanent"
        )

    def reset(self) -> None:
        """Every connection of the far host ends with an RST."""
        self._run("ss", "--kill", "--tcp", "dst", SERVER)

    def slow(self) -> None:
        """8 Mbit/s from the far host."""
        shape = "rate 8mbit burst 32kb latency 1s".split()
        self._run("tc", "qdisc", "replace", "dev", self._port, "root", "tbf", *shape)

    def _ip(self, *words: str) -> None:
        self._run("ip", *words)

    def _run(self, *words: str) -> None:
        command = ["ip", "netns", "exec", self._namespace, *words]
        subprocess.run(command, check=True, capture_output=True)


class Hosts:
    """A job on two hosts."""

    def __init__(self, near: str, far: str, folder: Path) -> None:
        self.link = Link(far, "far")
        self._folder = folder
        self._homes = {"server": near, "0": near, "1": far}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = new_token()

    def start(self, steps: int, heartbeat: float, mode: str = "sync") -> None:
        shared = {
            "PADDLE_PSERVERS_IP_PORT_LIST": f"{SERVER}:6170",
            "PADDLE_TRAINERS_NUM": "2",
            "FLAGS_heartbeat_seconds": str(heartbeat),
            "FLAGS_rpc_shared_memory": "0",  # the hosts share a kernel, which others do not
            TOKEN: self._token,
        }
        for role, home in self._homes.items():
            own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": role}
            if role == "server":
                own = {"TRAINING_ROLE": "PSERVER", "PADDLE_CURRENT_ENDPOINT": f"{SERVER}:6170"}
            env = environment(Request(str(self._folder), each=False), **shared, **own)
            command = [sys.executable, "-m", "bireme", "run", str(JOB), mode, str(steps)]
            with (self._folder / f"{role}.log").open("wb") as log:
                self._processes[role] = subprocess.Popen(
                    ["ip", "netns", "exec", home, *command], stdout=log, stderr=log, env=env
                )

    def until_step(self, step: int) -> None:
        done = self._folder / "trainer-0"
        until(lambda: steps_done(done) >= step, lambda: self.text("server"))

    def running(self) -> set[str]:
        return {role for role, process in self._processes.items() if process.poll() is None}

    def text(self, role: str) -> str:
        return (self._folder / f"{role}.log").read_text()

    def codes(self) -> dict[str, int]:
        end = time.monotonic() + PATIENCE
        return {
            role: p.wait(max(0.1, end - time.monotonic())) for role, p in self._processes.items()
        }

    def learnt(self, trainer: int) -> Values:
        return read_values(self._folder / f"trainer-{trainer}", LAST)

    def end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Two namespaces with a link between them, and none of it after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    near, far = (f"bireme-{os.getpid()}-{i}" for i in range(2))
    try:
        for name in (near, far):
            _ip("netns", "add", name)
        _ip("-n", near, "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", far)
        for name, port, address in ((near, "near", SERVER), (far, "far", OTHER)):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", port)
            _ip("-n", name, "link", "set", port, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        hosts = Hosts(near, far, folder)
        try:
            yield hosts
        finally:
            hosts.end()
    finally:
        for name in (near, far):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _short_cut(link: Link) -> None:
    link.cut()
    time.sleep(1.0)  # the length of the fault
    link.mend()


FAULTS: dict[str, Callable[[Link], None]] = {
    "cut": Link.cut,
    "one-way-cut": Link.cut_one_way,
    "short-cut": _short_cut,
    "reset": Link.reset,
    "slow": Link.slow,
}
FATAL = ("cut", "one-way-cut")
SIDES = {
    "server": "trainer 1 is lost",
    "0": "trainer 1 is lost",
    "1": "server 10.77.0.1:6170 is lost",
}


@dataclass(frozen=True, slots=True)
class LinkCase:
    """A fault of the link between trainer 1 and everybody else."""

    fault: str
    heartbeat: float = HEARTBEAT

    @property
    def name(self) -> str:
        return f"link/{self.fault}"

    def run(self, folder: Path) -> Outcome:
        """Do it to a job in `folder`."""
        with two_hosts(folder) as hosts:
            hosts.start(1000 if self.fault in FATAL else STEPS, self.heartbeat)
            hosts.until_step(STEP)
            FAULTS[self.fault](hosts.link)
            return _both_sides(hosts) if self.fault in FATAL else _goes_on(hosts)


def cases() -> list[LinkCase]:
    return [LinkCase(fault) for fault in FAULTS]


def _both_sides(hosts: Hosts) -> Outcome:
    """Each side has to end, naming who is behind the link."""
    outcome = Outcome("both sides end with an error that names the other", HEARTBEAT + 1.0)
    began = time.monotonic()
    while len(outcome.ended) < len(SIDES) and time.monotonic() - began < PATIENCE:
        now, running = time.monotonic() - began, hosts.running()
        for role, words in SIDES.items():
            if words in hosts.text(role):
                outcome.named.setdefault(role, now)
            if role not in running:
                outcome.ended.setdefault(role, now)
        time.sleep(0.01)  # looks at two processes and notes when each has ended
    for role, words in SIDES.items():
        if role not in outcome.named:
            outcome.problems.append(f"{role} does not say {words!r}: {hosts.text(role)[-300:]!r}")
    if 0 in (codes := hosts.codes()).values():
        outcome.problems.append(f"exit codes {codes}")
    return outcome


def _goes_on(hosts: Hosts) -> Outcome:
    """The job has to end in order, and both trainers to have learnt the same."""
    outcome, began = Outcome("the job goes on and learns the same"), time.monotonic()
    codes = hosts.codes()
    outcome.ended["job"] = time.monotonic() - began
    if any(codes.values()):
        outcome.problems += [
            f"{role}: {hosts.text(role)[-300:]!r}" for role in codes if codes[role]
        ]
        return outcome
    rows = last_values(hosts.learnt(0), hosts.learnt(1), 0.0)
    if not rows or not all(row.equal for row in rows):
        outcome.problems.append("the trainers have different parameters")
    return outcome
