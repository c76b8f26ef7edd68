"""How long is a step with 2 servers and 2 trainers? Four models beside Fluid 1.8, in turns.

Every process runs its arithmetic on one thread: four processes share the machine. Step times are
trainer 0's, without the first five: the median of a run, then over the runs of each side the median
and the least, which other work on the machine disturbs less. Ratios mean more than times.

    python benchmarks/bench_cluster.py [--mode async] [--sockets] [--save FILE] [MODEL ...]
    python benchmarks/bench_cluster.py --curve [--save FILE]    more and more trainers, one server
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median

from peer import HERE, machine, one_of, peer_python

STEPS = {"mlp": 40, "layers": 25, "wide": 20, "sparse": 40}
WARM = 5
Command = tuple[str, str]


def free_ports(count: int) -> list[int]:
    """Ports that are free now; a benchmark may be run again if one is lost."""
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


Beside = Callable[[list[int]], AbstractContextManager[object]]


def run(
    command: Command,
    model: str,
    mode: str,
    servers: int,
    trainers: int,
    env: dict[str, str],
    beside: Beside | None = None,
) -> float:
    """Milliseconds of a step; `beside` is what goes on meanwhile, given the servers' processes,
    which are then awaited first.
    """
    python, module = command
    ends = ",".join(f"127.0.0.1:{p}" for p in free_ports(servers))
    script = str(HERE / "fluid_cluster.py")
    clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    clean.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", **env)
    clean.setdefault("FLAGS_keep_freed_memory", "1")  # as `bireme run` does

    def start(role: str, rank: int) -> subprocess.Popen[str]:
        words = [model, mode, role, str(rank), ends, str(trainers), str(STEPS[model])]
        return subprocess.Popen(
            [python, script, module, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=clean,
        )

    children = [start("server", i) for i in range(servers)]
    try:
        with ExitStack() as stack:
            if beside is not None:
                await_ports(ends.split(","))
                stack.enter_context(beside([child.pid for child in children]))
            children += [start("trainer", i) for i in range(trainers)]
            found, _ = children[servers].communicate(timeout=180)
            for child in children[servers + 1 :]:
                child.wait(60)
    finally:
        for child in children:
            child.terminate()
        for child in children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    lines = [x for x in found.splitlines() if x.startswith("[")]
    if not lines:
        raise SystemExit(f"{module} {model} {mode}: trainer 0 printed no times")
    return median(json.loads(lines[0])[WARM:]) * 1e3


def await_ports(endpoints: list[str], seconds: float = 30.0) -> None:
    """Wait until somebody listens at each endpoint."""
    until = time.monotonic() + seconds
    for endpoint in endpoints:
        host, _, port = endpoint.partition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                break
            except OSError:
                if time.monotonic() > until:
                    raise SystemExit(f"nobody listens at {endpoint}") from None
                time.sleep(0.05)


def compared(times: dict[str, list[float]], what: Callable[[list[float]], float]) -> str:
    """Both sides' times and their ratio."""
    ours = what(times["bireme"])
    if "Fluid 1.8" not in times:
        return f"{ours:10.2f}{'-':>10}{'-':>8}"
    peer = what(times["Fluid 1.8"])
    return f"{ours:10.2f}{peer:10.2f}{ours / peer:8.2f}"


CURVE = (1, 2, 4, 8, 16)


def curve(rounds: int) -> list[str]:
    """Step times of 201 small layers with one server and more and more trainers."""
    lines = ["sync, 1 server, 201 layers of 16 x 16: ms per step", f"{'trainers':10}{'step':>8}"]
    lines[1] += f"{'a trainer':>12}"
    ours = (sys.executable, "bireme")
    for trainers in CURVE:
        step = median(run(ours, "layers", "sync", 1, trainers, {}) for _ in range(rounds))
        lines.append(f"{trainers:<10}{step:8.2f}{step / trainers:12.2f}")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--sockets", action="store_true", help="no shared memory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--save", type=Path)
    parser.add_argument("models", nargs="*", type=one_of(STEPS), default=list(STEPS))
    parser.add_argument("--curve", action="store_true", help="1 to 16 trainers, one server")
    options = parser.parse_args()
    if options.curve:
        found = [machine(), "", *curve(options.rounds)]
        if options.save:
            options.save.write_text("\n".join(found) + "\n", "utf-8")
        return
    sides: dict[str, Command] = {"bireme": (sys.executable, "bireme")}
    python = peer_python()
    if python is not None:
        sides["Fluid 1.8"] = (python, "paddle.fluid")
    env = {"FLAGS_rpc_shared_memory": "0"} if options.sockets else {}
    how = f"{options.mode}, {options.servers} servers x {options.trainers} trainers"
    lines = [machine(), "", f"{how}{', sockets only' if options.sockets else ''}, ms per step"]
    lines.append(f"{'':10}{'median of runs':>20}{'':8}{'least of runs':>20}")
    lines.append(f"{'model':10}" + 2 * f"{'bireme':>10}{'Fluid 1.8':>10}{'ratio':>8}")
    print("\n".join(lines))
    for model in options.models:
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, command in sides.items():
                size = (options.servers, options.trainers)
                times[side].append(run(command, model, options.mode, *size, env))
        lines.append(f"{model:10}{compared(times, median)}{compared(times, min)}")
        print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
