"""What does each pass gain: step time and memory on ResNet-50, a Transformer layer and the MLP.

Every line is a process of its own. Rounds of all alternate, so that they meet the same machine; a
ratio is the median over rounds of a line's fastest step over that of the plain program in the same
round, `best` that of the fastest steps. `peak` is what a step allocates at most: activations,
gradients and what they are computed with, without parameters and states.

    python benchmarks/bench_passes.py [--rounds 8] [--threads 0] [--save FILE] [MODEL ...]
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import date
from pathlib import Path
from statistics import median

from passes_models import MODELS
from peer import Runner, machine, one_of

FUSIONS = (
    "fuse_bn_act_ops",
    "fuse_bn_add_act_ops",
    "fuse_elewise_add_act_ops",
    "fuse_all_optimizer_ops",
    "enable_auto_fusion",
)
LINES = {
    "plain program": ("plain",),
    "memory_optimize": (),
    **{name: (name,) for name in FUSIONS},
    "all fusions": FUSIONS,
    "memory_optimize, recompute": ("recompute",),
    "all and recompute": (*FUSIONS, "recompute"),
}


def lines(model: str, rounds: int, threads: int) -> list[str]:
    with ExitStack() as stack:
        runners = {
            name: stack.enter_context(closing(_runner(model, fields, threads)))
            for name, fields in LINES.items()
            if "bn" not in name or model == "resnet50"
        }
        for _ in range(rounds):
            for runner in runners.values():
                runner.round()
        plain = runners["plain program"]
        return [_line(name, runner, plain) for name, runner in runners.items()]


def _runner(model: str, fields: Sequence[str], threads: int) -> Runner:
    return Runner(sys.executable, "passes_models.py", "bireme", model, *fields, threads=threads)


def _line(name: str, runner: Runner, plain: Runner) -> str:
    pairs = zip(runner.rounds, plain.rounds, strict=True)
    typical = median(min(a) / min(b) for a, b in pairs)
    best = min(runner.times) / min(plain.times)
    size = runner.facts["peak"]
    return (
        f"  {name:26}{min(runner.times) * 1e3:9.2f}{typical:8.2f}{best:8.2f}"
        f"{size / 2**20:10.1f}{size / plain.facts['peak']:8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("models", nargs="*", type=one_of(MODELS), default=list(MODELS))
    options = parser.parse_args()
    head = f"  {'':26}{'ms':>9}{'ratio':>8}{'best':>8}{'peak MiB':>10}{'ratio':>8}"
    found = [f"{date.today()}, {machine()}, {options.threads or 'all'} threads", head]
    print("\n".join(found), flush=True)
    for model in options.models:
        part = [f"{model}: {(MODELS[model][0].__doc__ or '').strip()}"]
        part += lines(model, options.rounds, options.threads)
        print("\n".join(part), flush=True)
        found += part
    if options.save:
        options.save.write_text("\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
