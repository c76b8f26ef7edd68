"""How long a job of many small parameters takes to begin, and whether it grows linearly.

    python benchmarks/bench_build.py [--quick] [--save benchmarks/results/build.txt]

One parameter is three variables: itself, its gradient, and the slice that a server holds. `build`
is `create_parameter`, `transpile` the split for a trainer and two servers, `server` the programs of
one server, `first` a step of the local program with its compilation, `second` the next one.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peer import machine

import bireme as fluid

COUNTS = (8_000, 16_000, 33_000)
ENDPOINTS = "10.0.0.1:6174,10.0.0.2:6174"


def stages(count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The steps of a job with `count` parameters, in their order."""
    main, startup = fluid.Program(), fluid.Program()
    executor, transpiler = fluid.Executor(fluid.CPUPlace()), fluid.DistributeTranspiler()
    zero = fluid.initializer.Constant(0.0)
    losses: list[fluid.Variable] = []

    def build() -> None:
        with fluid.program_guard(main, startup):
            parameters = [
                fluid.layers.create_parameter([1], "float32", f"p{i}", default_initializer=zero)
                for i in range(count)
            ]
            losses.append(fluid.layers.mean(fluid.layers.sum(parameters)))

    def minimize() -> None:
        with fluid.program_guard(main, startup):
            fluid.optimizer.SGD(0.1).minimize(losses[0])

    def split() -> None:
        transpiler.transpile(0, main, ENDPOINTS, 2, startup_program=startup)
        transpiler.get_trainer_program(wait_port=False)

    yield "build", build
    yield "minimize", minimize
    yield "startup", lambda: executor.run(startup)
    yield "first", lambda: executor.run(main, fetch_list=losses)
    yield "second", lambda: executor.run(main, fetch_list=losses)
    yield "transpile", split
    yield "server", lambda: transpiler.get_pserver_programs(ENDPOINTS.partition(",")[0])


def measure(count: int) -> dict[str, float]:
    """Seconds of each stage."""
    found = {}
    with fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        for name, action in stages(count):
            start = time.perf_counter()
            action()
            found[name] = time.perf_counter() - start
    return found


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="the smallest case only")
    options.add_argument("--save", type=Path, help="also write the table to this file")
    given = options.parse_args()
    lines = [machine(), ""]
    for count in COUNTS[:1] if given.quick else COUNTS:
        found = measure(count)
        if len(lines) == 2:
            lines.append("parameters" + "".join(f"{name + ' s':>13}" for name in (*found, "all")))
        times = (*found.values(), sum(found.values()))
        lines.append(f"{count:>10,}" + "".join(f"{value:>13.2f}" for value in times))
    print("\n".join(lines))
    if given.save:
        given.save.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
