"""What does the executor cost per operator? 200 x fc(16), beside Fluid 1.8 in one run.

Rounds of both alternate, so that both meet the same machine; ratios mean more than times. `null`
is a run of a program without operators: feeding, plan lookup and fetching alone. `cached` is the
peer with `use_program_cache=True`, which here changes nothing. The peer is optional: name its
Python in FLUID_PYTHON.

    python benchmarks/bench_executor.py [--rounds 10] [--save benchmarks/results/executor.txt]
"""

import argparse
import tracemalloc
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from peer import Runner, machine, runners

import bireme as fluid

LAYERS, ROWS, COLUMNS = 50, 4096, 1024


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
        lines.append("Fluid 1.8 was not measured: FLUID_PYTHON names no Python that has it")
    peak, least = memory
    lines += ["", "forward and backward of 50 layers of 4096 x 1024 (float32)"]
    lines.append(f"peak {peak:.0f} MiB, least {least:.0f} MiB, ratio {peak / least:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with runners("fluid_fc.py", peers=((), ("cached",))) as found:
        for _ in range(options.rounds):
            for runner in found.values():
                runner.round()
    text = table(found, null_step(), peak_memory())
    print(text)
    if options.save:
        options.save.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
