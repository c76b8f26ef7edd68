"""What does the executor cost per operator? 200 x fc(16), beside Fluid 1.8 in one run.

Rounds of both alternate, so that both meet the same machine; ratios mean more than times. `null`
is a run of a program without operators: feeding, plan lookup and fetching alone. `cached` is the
peer with `use_program_cache=True`, which here changes nothing. The peer is optional: name its
Python in FLUID_PYTHON.

    python benchmarks/bench_executor.py [--rounds 10] [--save benchmarks/results/executor.txt]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import bireme as fluid

HERE = Path(__file__).parent
PEER = os.environ.get("FLUID_PYTHON", "/opt/paddle/v/bin/python")
LAYERS, ROWS, COLUMNS = 50, 4096, 1024


class Runner:
    """A process that runs the script on one implementation, a round whenever it is asked."""

    def __init__(self, python: str, module: str, *words: str) -> None:
        command = [python, str(HERE / "fluid_fc.py"), module, *words]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True
        )
        self.facts: dict[str, float] = self._answer()
        self.times: list[float] = []

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise RuntimeError("the script ended before it answered")

    def round(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.times += self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def peer_python() -> str | None:
    """The peer's interpreter, if Fluid can be imported there."""
    try:
        check = [PEER, "-c", "import paddle.fluid"]
        subprocess.run(check, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return PEER


@contextmanager
def runners() -> Iterator[dict[str, Runner]]:
    found = {"bireme": Runner(sys.executable, "bireme")}
    python = peer_python()
    if python is not None:
        found["Fluid 1.8"] = Runner(python, "paddle.fluid")
        found["  cached"] = Runner(python, "paddle.fluid", "cached")
    try:
        yield found
    finally:
        for runner in found.values():
            runner.close()


def null_step(steps: int = 500) -> float:
    """Seconds of a run that feeds one array and fetches it again."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [16])
    exe, feed = fluid.Executor(fluid.CPUPlace()), {"x": np.zeros((8, 16), "float32")}
    times = []
    for _ in range(steps):
        start = perf_counter()
        exe.run(program, feed=feed, fetch_list=[x])
        times.append(perf_counter() - start)
    return median(times)


def peak_memory() -> tuple[float, float]:
    """MiB at the peak of a step of 50 layers of 4096 x 1024 activations, and the least it can be.

    The least: each layer's output waits for its gradient, and one gradient is alive beside them.
    """
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        hidden = fluid.layers.data("x", [COLUMNS])
        hidden.stop_gradient = False
        for _ in range(LAYERS):
            hidden = fluid.layers.tanh(hidden)
        fluid.backward.append_backward(fluid.layers.mean(hidden), parameter_list=[])
        fluid.backward.gradients(fluid.layers.mean(hidden), program.global_block().var("x"))
    grad = next(n for n in program.global_block().vars if n.startswith("x@GRAD"))
    exe, feed = fluid.Executor(fluid.CPUPlace()), {"x": np.ones((ROWS, COLUMNS), "float32")}
    exe.run(program, feed=feed, fetch_list=[grad])
    tracemalloc.start()
    exe.run(program, feed=feed, fetch_list=[grad])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each = ROWS * COLUMNS * 4
    return peak / 2**20, (LAYERS + 1) * each / 2**20


def machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{os.cpu_count()} cores, {model}; {versions}"


def table(found: dict[str, Runner], null: float, memory: tuple[float, float]) -> str:
    lines = [machine(), "", "200 x fc(16), relu, batch 8, Momentum"]
    lines.append(f"{'':12}{'build ms':>10}{'first ms':>10}{'step ms':>10}{'us/op':>8}{'ratio':>8}")
    base = median(found["Fluid 1.8"].times) if "Fluid 1.8" in found else None
    for name, runner in found.items():
        step, ops = median(runner.times), runner.facts["operators"]
        ratio = f"{step / base:8.3f}" if base else "       -"
        build, first = runner.facts["build"] * 1e3, runner.facts["first"] * 1e3
        lines.append(
            f"{name:12}{build:10.0f}{first:10.0f}{step * 1e3:10.2f}{step / ops * 1e6:8.2f}{ratio}"
        )
    lines.append(f"{'null':12}{'':10}{'':10}{null * 1e3:10.3f}")
    if base is None:
        lines.append(f"Fluid 1.8 was not measured: {PEER} cannot import paddle.fluid")
    peak, least = memory
    lines += ["", "forward and backward of 50 layers of 4096 x 1024 (float32)"]
    lines.append(f"peak {peak:.0f} MiB, least {least:.0f} MiB, ratio {peak / least:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with runners() as found:
        for _ in range(options.rounds):
            for runner in found.values():
                runner.round()
    text = table(found, null_step(), peak_memory())
    print(text)
    if options.save:
        options.save.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
