"""Do half-open connections slow a job down, or grow its servers? 1,000 at each server, for minutes.

A synchronous job of 2 servers and 2 trainers over TCP with TLS and a token, once alone and once
besieged by `strangers.py`: at the gRPC port and the TCP port of each server a quarter of the
connections each says nothing, and another has stopped in the middle of a TLS handshake; each that
is closed is opened again. The second trainer starts late, when the strangers are there. Steps are
counted by trainer 0's admin port, threads, descriptors and memory by /proc.

    python benchmarks/bench_siege.py [--minutes N] [--count N] [--save FILE] [MODEL]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench_cluster import STEPS, await_ports, free_ports
from bench_prices import Prices
from peer import HERE, machine, one_of

STRETCH = 5.0  # seconds between two looks
PATIENCE = 120.0  # seconds for the first step
ALONE = 2.0  # minutes without strangers
TURN = 0.25  # minutes with and without them, in turns, which other work on the machine meets alike


class Look(NamedTuple):
    """Threads, descriptors and MiB of the servers, the largest of each."""

    threads: int
    descriptors: int
    memory: float


class Job:
    """The processes of a job, ended with the block; trainer 1 is started by `late`."""

    def __init__(self, model: str, env: dict[str, str]) -> None:
        *ports, self._admin = free_ports(3)
        self._ends = [f"127.0.0.1:{port}" for port in ports]
        self._model = model
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        self._env = {**clean, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **env}
        self._children = [self._start("server", rank) for rank in range(len(ports))]
        self.servers = [child.pid for child in self._children]
        await_ports(self._ends)
        self._children.append(self._start("trainer", 0, {"FLAGS_admin_port": str(self._admin)}))

    def _start(self, role: str, rank: int, more: dict[str, str] | None = None) -> "Process":
        words = [self._model, "sync", role, str(rank), ",".join(self._ends), "2", "1000000000"]
        return subprocess.Popen(
            [sys.executable, str(HERE / "fluid_cluster.py"), "bireme", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**self._env, **(more or {})},
        )

    def late(self) -> float:
        """Start trainer 1; the seconds until the first step has ended."""
        began = time.monotonic()
        self._children.append(self._start("trainer", 1))
        while time.monotonic() < began + PATIENCE:
            if self.steps():
                return time.monotonic() - began
            time.sleep(0.02)
        raise SystemExit(f"no step within {PATIENCE:g} s")

    def steps(self) -> int:
        """The steps of trainer 0 so far."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._admin}/status", timeout=5
            ) as page:
                return int(json.load(page).get("step", 0))
        except OSError:  # it is still starting
            return 0

    def watched(self, minutes: float) -> tuple[list[float], list[Look]]:
        """Milliseconds of a step in each stretch, and looks at the servers."""
        times, looks = [], []
        until = time.monotonic() + 60 * minutes
        before, then = self.steps(), time.monotonic()
        while then < until:
            time.sleep(STRETCH)
            steps, now = self.steps(), time.monotonic()
            times.append((now - then) / max(1, steps - before) * 1e3)
            looks.append(Look(*map(max, zip(*map(_look, self.servers), strict=True))))
            before, then = steps, now
        return times, looks

    def end(self) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()


Process = subprocess.Popen[bytes]


def _look(pid: int) -> Look:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(row.split(":", 1) for row in rows)
    memory = int(status["VmRSS"].split()[0]) / 1024
    return Look(int(status["Threads"]), len(os.listdir(f"/proc/{pid}/fd")), memory)


@contextmanager
def strangers(count: int, servers: Sequence[int]) -> Iterator[None]:
    """`count` at each server, a quarter of them idle and a quarter half at each of two ports."""
    command = [sys.executable, str(HERE / "strangers.py"), "--tcp", "idle,half", str(count // 4)]
    command += ["1", *map(str, servers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if (found := process.stdout.readline().split()[:1]) != [str(count * len(servers))]:
            raise SystemExit(f"the strangers opened {found} connections at {len(servers)} servers")
        yield
    finally:
        process.terminate()
        process.communicate()


def turns(job: Job, count: int, number: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a step alone and besieged, in turns."""
    alone, besieged = [], []
    for _ in range(number):
        alone.append(median(job.watched(TURN)[0]))
        with strangers(count, job.servers):
            besieged.append(median(job.watched(TURN)[0]))
    return alone, besieged


def row(name: str, late: float | None, times: list[float], looks: list[Look]) -> str:
    """A line of the table: from the first to the last minute, least and most."""
    started = f"{late:10.1f}" if late is not None else f"{'':10}"
    ranges = "".join(
        f"{f'{min(found):.0f} to {max(found):.0f}':>14}" for found in zip(*looks, strict=True)
    )
    return f"{name:22}{started}{median(times):10.2f}{min(times):10.2f}{ranges}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--count", type=int, default=1000, help="connections at each server")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--save", type=Path)
    parser.add_argument("model", nargs="?", type=one_of(STEPS), default="layers")
    options = parser.parse_args()
    lines = [machine(), commit(), ""]
    lines.append(
        f"sync, 2 servers x 2 trainers over TCP with TLS, {options.model}; besieged: "
        f"{options.count} half-open connections at each server for {options.minutes:g} minutes"
    )
    lines.append(
        f"{'':22}{'trainer 1':>10}{'ms per step':>20}{'of a server, least to most':>42}\n"
        f"{'':22}{'starts, s':>10}{'median':>10}{'least':>10}"
        f"{'threads':>14}{'descriptors':>14}{'MiB':>14}"
    )
    print("\n".join(lines), flush=True)

    def add(*words: object) -> None:
        lines.append(row(*words))  # type: ignore[arg-type]
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as name:
        env = Prices(Path(name)).env("TCP", "TLS")
        with ExitStack() as stack:
            job = Job(options.model, env)
            stack.callback(job.end)
            late = job.late()
            add("alone", late, *job.watched(ALONE))
        with ExitStack() as stack:
            job = Job(options.model, env)
            stack.callback(job.end)
            with strangers(options.count, job.servers):
                late = job.late()
                for minute in range(max(1, round(options.minutes))):
                    found = job.watched(min(1.0, options.minutes))
                    add(f"besieged, minute {minute + 1}", late if not minute else None, *found)
            add("alone again", None, *job.watched(ALONE))
            alone, besieged = turns(job, options.count, options.turns)
    ratios = [b / a for a, b in zip(alone, besieged, strict=True)]
    lines.append(
        f"{options.turns} turns of {60 * TURN:g} s each: alone {median(alone):.2f} ms, besieged "
        f"{median(besieged):.2f} ms; besieged / alone in a turn: median {median(ratios):.2f}, "
        f"{min(ratios):.2f} to {max(ratios):.2f}"
    )
    print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


def commit() -> str:
    """Which commit was measured, and what else the machine did."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True
    )
    load = os.getloadavg()[0]
    return f"commit {found.stdout.strip()}; load at the start {load:.1f}"


if __name__ == "__main__":
    main()
