"""What do a million rows of a growing table take, and how long do look-ups and updates last?

One server's table of 64 floats with Adagrad, fed as trainers feed it: merged gradients of rows,
by the server's own program. Memory is what the process grew by, against the arrays alone (value
and accumulator of every row). Times are medians; `array` is the same work on a plain array of all
rows by its positions, which is the least that it can take.

    python benchmarks/bench_tables.py [--rows N] [--width N] [--save FILE]
"""

import argparse
import gc
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from peer import machine

import bireme as fluid
from bireme.arrays.values import SelectedRows
from bireme.pserver.store.tables import Tables
from bireme.runtime.scope import Scope

IDS = 2048
REPEATS = 50


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def server(width: int) -> tuple[Scope, Callable[[], None], Tables, str]:
    """A server's scope, its update, its tables, and the name of the gradient."""
    with fluid.unique_name.guard():
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 1
        with fluid.program_guard(main, startup):
            ids = fluid.layers.data("ids", [1], dtype="int64")
            rows = fluid.layers.embedding(ids, [-1, width], is_sparse=True, is_distributed=True)
            fluid.optimizer.Adagrad(0.1).minimize(fluid.layers.mean(fluid.layers.fc(rows, 1)))
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = False
    transpiler = fluid.DistributeTranspiler(config)
    end = "127.0.0.1:6000"
    transpiler.transpile(0, main, end, 1, False, startup_program=startup)
    program, begin = transpiler.get_pserver_programs(end)
    scope, executor = Scope(), fluid.Executor(fluid.CPUPlace())
    executor.run(begin, scope=scope)
    tables = Tables(program, scope)
    serve = program.global_block().ops[-1]
    pairs = [text.rpartition(":") for text in serve.attrs["grad_to_block_id"]]
    (name, block) = next((n, int(b)) for n, _, b in pairs if ".pserver_" in n)
    return scope, executor.prepare(program, block, scope), tables, name


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--save", metavar="FILE")
    options = parser.parse_args()
    lines = [machine(), "", *measure(options.rows, options.width)]
    print("\n".join(lines))
    if options.save:
        Path(options.save).write_text("\n".join(lines) + "\n")


def measure(rows: int, width: int) -> list[str]:
    random = np.random.default_rng(0)
    ids = random.permutation(np.unique(random.integers(0, 2**62, rows + rows // 50))[:rows])
    gradient = random.normal(size=(IDS, width)).astype(np.float32)
    scope, update, tables, name = server(width)
    (table,) = tables

    def push(chosen: np.ndarray) -> None:
        scope.var(name).put(SelectedRows(chosen, gradient[: len(chosen)], -1))
        update()

    push(ids[:1])
    before, began = resident(), perf_counter()
    for start in range(0, rows, IDS):
        push(ids[start : start + IDS])
    grown, took = resident() - before, perf_counter() - began
    raw = 2 * rows * width * 4
    assert len(table) == rows
    batches = iter([np.sort(random.choice(ids, IDS, replace=False)) for _ in range(4 * REPEATS)])
    value = scope.var(table.name).value
    plain, moment = (np.ones((rows, width), np.float32) for _ in "pm")
    places = iter([random.choice(rows, IDS, replace=False) for _ in range(4 * REPEATS)])

    def by_hand() -> None:
        at = next(places)
        m = moment[at] + gradient * gradient
        moment[at] = m
        plain[at] -= gradient * 0.1 / (np.sqrt(m) + 1e-6)

    found = {
        "look up": (timed(lambda: value.rows(next(batches))), timed(lambda: plain[next(places)])),
        "update": (timed(lambda: push(next(batches))), timed(by_hand)),
    }
    unseen = random.integers(2**62, 2**63 - 1, (REPEATS, IDS))
    fresh = iter(unseen)
    found["look up rows that are not there"] = (timed(lambda: value.rows(next(fresh))), 0.0)
    fresh = iter(unseen)
    found["update rows that were not there"] = (timed(lambda: push(next(fresh))), 0.0)
    lines = [
        f"{rows:,} rows of {width} floats, Adagrad: {grown / rows:.0f} bytes a row,"
        f" {raw / rows:.0f} of them arrays: {grown / raw:.3f} times the raw arrays",
        f"grown by {IDS} ids at a time in {took:.1f} s: {rows / took:,.0f} new rows a second",
        "",
        f"{f'{IDS} ids, ms':<34}{'table':>8}{'array':>8}",
    ]
    for what, (ours, floor) in found.items():
        lines.append(f"{what:<34}{ours:>8.3f}" + (f"{floor:>8.3f}" if floor else ""))
    return lines


if __name__ == "__main__":
    main()
