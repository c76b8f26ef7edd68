"""How fast do 64 MiB reach a server, and come back? Beside a bare TCP socket, in turns.

One server process and one trainer on this host. A push is over when the server has the gradient,
a pull when the trainer holds a copy of the parameter. The bare socket fills an array that is
there already.

    python benchmarks/bench_payload.py [--rounds N] [--save FILE]
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from bench_cluster import free_ports
from peer import HERE, machine

from bireme import flags
from bireme.arrays.malloc import keep_memory
from bireme.net.heartbeat import times
from bireme.trainer.registry import Registry
from bireme.trainer.trainer import Trainer

SIZE = 4096 * 4096
WAYS = {
    "shared memory": {"rpc_shared_memory": True, "rpc_stream": True},
    "stream": {"rpc_shared_memory": False, "rpc_stream": True},
    "gRPC": {"rpc_shared_memory": False, "rpc_stream": False},
}
ECHO = """
import socket, sys
import numpy as np
memory = memoryview(np.zeros(int(sys.argv[2]), np.float32)).cast("B")
made = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("ready", flush=True)
other, _ = made.accept()
while order := other.recv(1):
    if order == b"<":
        other.sendall(memory)
        continue
    at = 0
    while at < len(memory):
        at += other.recv_into(memory[at:])
    other.sendall(b".")
"""


def timed(task: Callable[[], object]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


class Bare:
    """The bare socket: the process behind it stores what comes, or sends as much."""

    def __init__(self) -> None:
        (port,) = free_ports(1)
        command = [sys.executable, "-c", ECHO, str(port), str(SIZE)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._memory = memoryview(np.zeros(SIZE, np.float32)).cast("B")

    def push(self) -> None:
        self._socket.sendall(b">")
        self._socket.sendall(self._memory)
        self._socket.recv(1)

    def pull(self) -> None:
        self._socket.sendall(b"<")
        at = 0
        while at < len(self._memory):
            at += self._socket.recv_into(self._memory[at:])

    def close(self) -> None:
        self._socket.close()
        self._process.wait(10)


class Sender:
    """A trainer of one server that holds one parameter."""

    def __init__(self, endpoint: str, trainer: int) -> None:
        self._end = endpoint
        self._trainer = Trainer(trainer, Registry().dial, times())
        self._servers = self._trainer.servers
        self._servers.greet([endpoint])
        self._gradient = self._servers.buffer("w", (4096, 4096), "float32")
        if self._gradient is None:
            self._gradient = np.empty((4096, 4096), np.float32)
        self._gradient[...] = 1

    def push(self) -> None:
        server = self._servers.server(self._end)
        server.push({"fc_0.w_0@GRAD": self._gradient})
        server.pull((), gated=False)
        server.result()

    def settle(self) -> None:
        self._servers.barrier([self._end], strict=True)
        self._servers.exchange({self._end: ()})

    def pull(self) -> None:
        self._servers.exchange({self._end: ("fc_0.w_0",)})

    def close(self) -> None:
        self._trainer.close()


def served(way: str, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of pushes and pulls over one way."""
    flags.set_flags(WAYS[way])
    end = f"127.0.0.1:{free_ports(1)[0]}"
    words = ["bireme", "wide", "sync", "server", "0", end, "1", "1"]
    env = {f"FLAGS_{name}": str(int(value)) for name, value in WAYS[way].items()}
    command = [sys.executable, str(HERE / "fluid_cluster.py"), *words]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, **env})
    try:
        trainer = Sender(end, 0)
        pushes, pulls = [], []
        for _ in range(rounds + 2):
            pushes.append(timed(trainer.push))
            trainer.settle()
            pulls.append(timed(trainer.pull))
        trainer.close()
        server.wait(20)
    finally:
        server.kill()
    return pushes[2:], pulls[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    flags.set_flags({"FLAGS_keep_freed_memory": True})  # as `bireme run` does
    keep_memory()
    lines = [machine(), "", "64 MiB between two processes of one host, GB/s (median)"]
    lines.append(f"{'way':16}{'push':>8}{'pull':>8}{'of bare':>9}{'of bare':>9}")
    bare = Bare()
    print("\n".join(lines))
    for way in WAYS:
        before = [(timed(bare.push), timed(bare.pull)) for _ in range(options.rounds)]
        found = served(way, options.rounds)
        after = [(timed(bare.push), timed(bare.pull)) for _ in range(options.rounds)]
        base = [median(each) for each in zip(*before, strict=True)]
        again = [median(each) for each in zip(*after, strict=True)]
        floor = [min(pair) for pair in zip(base, again, strict=True)]
        speeds = [SIZE * 4 / median(each) / 1e9 for each in found]
        shares = [f / median(each) for f, each in zip(floor, found, strict=True)]
        lines.append(f"{way:16}{speeds[0]:8.2f}{speeds[1]:8.2f}{shares[0]:9.0%}{shares[1]:9.0%}")
        print(lines[-1], flush=True)
    bare.close()
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
