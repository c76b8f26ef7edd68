"""How long is a local training step? MLP, LeNet, a bottleneck stage and word2vec beside Fluid 1.8.

Rounds of all sides alternate, so that they meet the same machine; ratios mean more than times. A
ratio is the median over rounds of one side's median step over the peer's in the same round; `best`
is that of the fastest steps. With numba installed, its kernels are measured beside NumPy alone.
`--threads 0` leaves each side its default: ours takes every core, the peer sets itself to one
thread (more make it slower here). `--threads 1` gives both one.

    python benchmarks/bench_models.py [--rounds 8] [--threads 0 1] [--save FILE] [MODEL ...]
"""

import argparse
import importlib.metadata
from datetime import date
from pathlib import Path
from statistics import median

from fluid_models import MODELS
from peer import Runner, machine, peer_python, runners

PEER = "Fluid 1.8"


def sides() -> dict[str, dict[str, str]]:
    """Ours with NumPy alone, and with numba where it is installed."""
    found = {"NumPy": {"FLAGS_use_numba": "off"}}
    if numba():
        found["numba"] = {"FLAGS_use_numba": "on"}
    return found


def numba() -> str:
    try:
        return f", numba {importlib.metadata.version('numba')}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def ratios(runner: Runner, peer: Runner) -> tuple[float, float]:
    """Over the rounds, and of the fastest steps."""
    rounds = zip(runner.rounds, peer.rounds, strict=True)
    typical = median(median(a) / median(b) for a, b in rounds)
    return typical, min(runner.times) / min(peer.times)


def row(name: str, rounds: int, threads: int) -> str:
    with runners("fluid_models.py", [name], threads=threads, ours=sides()) as found:
        for _ in range(rounds):
            for runner in found.values():
                runner.round()
    peer = found.pop(PEER, None)
    cells = [f"{name:12}"]
    for runner in found.values():
        cells.append(f"{median(runner.times) * 1e3:10.2f}")
        cells += [f"{r:8.2f}" for r in ratios(runner, peer)] if peer else []
    if peer:
        cells.append(f"{median(peer.times) * 1e3:12.2f}")
    return "".join(cells)


def heading(with_peer: bool) -> str:
    cells = [f"{'model':12}"]
    for label in sides():
        cells.append(f"{label:>10}" + (f"{'ratio':>8}{'best':>8}" if with_peer else ""))
    return "".join(cells) + (f"{PEER:>12}" if with_peer else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--save", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    lines = [f"{date.today()}, {machine()}{numba()}", "milliseconds per training step, median"]
    print("\n".join(lines), flush=True)
    for threads in options.threads:
        given = f"{threads} thread each" if threads else "threads: every core; the peer's default 1"
        lines += ["", given, heading(peer_python() is not None)]
        print("\n".join(lines[-3:]), flush=True)
        for name in options.models:
            lines.append(row(name, options.rounds, threads))
            print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
