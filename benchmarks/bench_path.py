"""Is a step of 2 servers and 2 trainers slower than it was? This checkout beside older ones.

Runs alternate, so that all meet the same machine. Times are milliseconds of trainer 0's steps
without the first five: the least of all runs, and the median of the runs' medians.

    git worktree add ../older 3051f25 && make -C ../older environment
    python benchmarks/bench_path.py 3051f25=../older/.venv/bin/python [--save FILE]
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from bench_cluster import STEPS, run
from peer import machine

CARRIERS = {
    "shared memory": {},
    "sockets": {"FLAGS_rpc_shared_memory": "0"},
    "gRPC": {"FLAGS_rpc_shared_memory": "0", "FLAGS_rpc_stream": "0"},
}


def measured(
    pythons: Mapping[str, str], mode: str, model: str, env: dict[str, str], rounds: int
) -> dict[str, list[float]]:
    """The medians of each side's runs."""
    found: dict[str, list[float]] = {side: [] for side in pythons}
    for _ in range(rounds):
        for side, python in pythons.items():
            found[side].append(run((python, "bireme"), model, mode, 2, 2, env))
    return found


def rows(
    pythons: Mapping[str, str], modes: Sequence[str], carriers: Sequence[str], rounds: int
) -> Iterator[str]:
    yield machine()
    ours, *others = pythons
    yield "ms: least (median)    " + "".join(f"{side:>18}" for side in pythons)
    for mode in modes:
        for carrier in carriers:
            for model in STEPS:
                found = measured(pythons, mode, model, CARRIERS[carrier], rounds)
                cells = [f"{min(t):.1f} ({median(t):.1f})" for t in found.values()]
                ratios = [f"{min(found[ours]) / min(found[side]):.2f}" for side in others]
                name = f"{mode} {model}, {carrier}"
                yield f"{name:30}" + "".join(f"{c:>18}" for c in cells) + "  x " + ", ".join(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("older", nargs="+", metavar="NAME=PYTHON")
    parser.add_argument("--modes", nargs="+", default=["sync", "async"])
    parser.add_argument("--carriers", nargs="+", choices=CARRIERS, default=list(CARRIERS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    pythons = {"here": sys.executable, **dict(each.split("=", 1) for each in given.older)}
    lines = []
    for line in rows(pythons, given.modes, given.carriers, given.rounds):
        print(line, flush=True)
        lines.append(line)
    if given.save:
        given.save.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
