"""What does ReduceStrategy.Reduce save, and what does a step cost, beside AllReduce?

Ranks are processes of this host, one thread each; the model is a stack of equal layers under Adam.
`state` is what a rank keeps of updates, `resident` its memory after some steps less that of an
equal process before its first step. Both strategies take turns by rounds; a ratio is that of their
median steps.

    python benchmarks/bench_reduce.py [--ranks 2 4] [--rounds 6] [--layers 8] [--width 1024]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median

from peer import machine

STEPS = 3


def resident() -> int:
    """Bytes of this process in memory that no other process maps."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(x.split()[1]) for x in text.splitlines() if x.startswith("Private_")) << 10


def worker(strategy: str, rank: str, endpoints: str, layers: str, width: str) -> None:
    """Answer each line of the input with step times."""
    import numpy as np

    import bireme as fluid

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        h = x = fluid.layers.data("x", [int(width)])
        for _ in range(int(layers)):
            h = fluid.layers.fc(h, int(width), act="tanh")
        loss = fluid.layers.mean(h)
        fluid.optimizer.Adam(1e-4).minimize(loss)
    main._trainers_endpoints, main._trainer_id = endpoints.split(","), int(rank)
    chosen = fluid.BuildStrategy()
    chosen.reduce_strategy = getattr(fluid.BuildStrategy.ReduceStrategy, strategy)
    program = fluid.CompiledProgram(main, chosen)
    feed = {x.name: np.ones((8, int(width)), "float32")}
    exe = fluid.Executor(fluid.CPUPlace())
    before = resident()
    exe.run(startup)

    def step() -> float:
        began = time.perf_counter()
        exe.run(program, feed, [loss])
        return time.perf_counter() - began

    for _ in range(3):
        step()
    scope = fluid.global_scope()
    values = [scope.find_var(v.name).get() for v in main.list_vars() if "moment" in v.name]
    values = [v for v in values if isinstance(v, np.ndarray)]
    state = sum(v.nbytes for v in values)
    del values
    print(json.dumps([state, resident() - before]), flush=True)
    for _ in sys.stdin:
        print(json.dumps([step() for _ in range(STEPS)]), flush=True)
    os._exit(0)


def ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


class Job:
    """The ranks of one strategy, which run a round whenever they are asked."""

    def __init__(self, strategy: str, ranks: int, layers: int, width: int) -> None:
        endpoints = ",".join(f"127.0.0.1:{port}" for port in ports(ranks))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "FLAGS_keep_freed_memory": "0"}
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", strategy, str(rank), endpoints,
                 str(layers), str(width)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=env,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        self.memory = self._answers()
        self.times: list[float] = []

    def _answers(self) -> list[list[float]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = next(x for x in process.stdout if x.startswith("["))
            found.append(json.loads(line))
        return found

    def round(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        self.times += [max(step) for step in zip(*self._answers(), strict=True)]

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    size = options.layers * options.width**2 * 4 / (1 << 20)
    lines = [
        f"{date.today()}, {machine()}",
        f"{options.layers} layers of {options.width} x {options.width}, {size:.0f} MiB, Adam",
        f"{'':18}{'state MiB':>10}{'resident MiB':>14}{'step ms':>10}{'ratio':>8}",
    ]
    for ranks in options.ranks:
        jobs = {s: Job(s, ranks, options.layers, options.width) for s in ("AllReduce", "Reduce")}
        for _ in range(options.rounds):
            for job in jobs.values():
                job.round()
        first = median(jobs["AllReduce"].times)
        for name, job in jobs.items():
            state, whole = (max(m[i] for m in job.memory) / (1 << 20) for i in (0, 1))
            step = median(job.times)
            label = f"{ranks} ranks {name}"
            cells = f"{label:18}{state:10.1f}{whole:14.1f}{step * 1e3:10.1f}"
            lines.append(f"{cells}{step / first:8.2f}")
            job.close()
    print("\n".join(lines))
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main()
