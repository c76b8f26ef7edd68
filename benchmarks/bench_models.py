"""How long is a local training step? MLP, LeNet, a bottleneck stage and word2vec beside Fluid 1.8.

Rounds of both alternate, so that both meet the same machine; ratios mean more than times.

    python benchmarks/bench_models.py [--rounds 8] [--save benchmarks/results/models.txt]
"""

import argparse
from pathlib import Path
from statistics import median

from fluid_models import MODELS
from peer import machine, runners


def row(name: str, rounds: int) -> str:
    with runners("fluid_models.py", [name]) as found:
        for _ in range(rounds):
            for runner in found.values():
                runner.round()
        times = {label: median(r.times) * 1e3 for label, r in found.items()}
    ours, peer = times["bireme"], times.get("Fluid 1.8")
    other = f"{peer:10.2f}{ours / peer:8.2f}" if peer else f"{'-':>10}{'-':>8}"
    return f"{name:12}{ours:10.2f}{other}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--save", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    lines = [machine(), "", "milliseconds per training step, median"]
    lines.append(f"{'model':12}{'bireme':>10}{'Fluid 1.8':>10}{'ratio':>8}")
    print("\n".join(lines))
    for name in options.models:
        lines.append(row(name, options.rounds))
        print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
