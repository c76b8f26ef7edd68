"""How long is a local training step, beside Fluid 1.8 and torch?

MLP, LeNet, a bottleneck stage, ResNet-50, a Transformer layer, an LSTM over text and word2vec.
Rounds of all sides alternate, so that they meet the same machine; ratios mean more than times. A
ratio is the median over rounds of our median step over that of the fastest other side in the same
round; `best` is that of the fastest steps. With numba or oneDNN installed, they are measured beside
NumPy alone, as `extras`; `fused` is the same with all fusions of BuildStrategy. The best of our
columns counts, and the best of the others', Fluid's fusions and torch's compiler among them.
`--threads 1` gives every side one thread, `--threads 2` two; 0 leaves each its default.
Name the peers' interpreters in FLUID_PYTHON and TORCH_PYTHON; one that is not there has no column.

    python benchmarks/bench_models.py [MODEL ...] [--rounds 6] [--threads 1 2] [--save FILE]
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fluid_models import MODELS
from peer import Runner, extras, machine, one_of, peer_python

OURS = ("NumPy", "extras", "fused")
FUSIONS = (
    "fuse_bn_act_ops",
    "fuse_bn_add_act_ops",
    "fuse_elewise_add_act_ops",
    "fuse_all_optimizer_ops",
    "enable_auto_fusion",
)
TORCH = os.environ.get("TORCH_PYTHON", "")


class Side(NamedTuple):
    """Interpreter, script and its words, around the model's name, and environment of a column."""

    python: str
    script: str
    module: str
    fields: tuple[str, ...]
    env: dict[str, str]

    def start(self, model: str, threads: int) -> Runner:
        words = (self.module, model, *self.fields)
        return Runner(self.python, self.script, *words, threads=threads, env=self.env)


def choice(value: str) -> dict[str, str]:
    return {"FLAGS_use_numba": value, "FLAGS_use_onednn": value}


def with_torch() -> bool:
    if not TORCH:
        return False
    return subprocess.run([TORCH, "-c", "import torch"], capture_output=True).returncode == 0


def sides() -> dict[str, Side]:
    us, fluid = sys.executable, peer_python()
    found = {"NumPy": Side(us, "fluid_models.py", "bireme", (), choice("off"))}
    if extras():
        found["extras"] = Side(us, "fluid_models.py", "bireme", (), choice("auto"))
    found["fused"] = Side(us, "fluid_models.py", "bireme", FUSIONS, choice("auto"))
    if fluid is not None:
        one = {"CPU_NUM": "1"}
        found["Fluid 1.8"] = Side(fluid, "fluid_models.py", "paddle.fluid", (), one)
        found["its fused"] = Side(fluid, "fluid_models.py", "paddle.fluid", FUSIONS, one)
    if with_torch():
        found["torch"] = Side(TORCH, "torch_models.py", "eager", (), {})
        found["compiled"] = Side(TORCH, "torch_models.py", "compiled", (), {})
    return found


@contextmanager
def runners(name: str, threads: int) -> Iterator[dict[str, Runner]]:
    """Those sides that can run a model."""
    found: dict[str, Runner] = {}
    with ExitStack() as stack:
        for label, side in sides().items():
            try:
                runner = side.start(name, threads)
            except RuntimeError:
                continue  # it cannot: torch has no compiler here, or does not know the model
            stack.callback(runner.close)
            found[label] = runner
        yield found


def ratios(ours: Sequence[Runner], peers: Sequence[Runner]) -> tuple[float, float]:
    """Of the faster of ours to the fastest peer: over the rounds, and of the fastest steps."""

    def least(runners: Sequence[Runner]) -> list[float]:
        rounds = zip(*(runner.rounds for runner in runners), strict=True)
        return [min(median(times) for times in found) for found in rounds]

    typical = median(a / b for a, b in zip(least(ours), least(peers), strict=True))
    best = min(min(r.times) for r in ours) / min(min(r.times) for r in peers)
    return typical, best


def row(name: str, rounds: int, threads: int) -> str:
    with runners(name, threads) as found:
        for _ in range(rounds):
            for runner in found.values():
                runner.round()
    cells = [f"{name:12}"]
    for label in sides():
        runner = found.get(label)
        cells.append(f"{median(runner.times) * 1e3:10.2f}" if runner else f"{'-':>10}")
    peers = [runner for label, runner in found.items() if label not in OURS]
    if peers:
        ours = [found[label] for label in OURS if label in found]
        cells += [f"{ratio:8.2f}" for ratio in ratios(ours, peers)]
    return "".join(cells)


def heading() -> str:
    labels = list(sides())
    peers = [label for label in labels if label not in OURS]
    columns = [f"{label:>10}" for label in labels]
    return f"{'model':12}" + "".join(columns) + (f"{'ratio':>8}{'best':>8}" if peers else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--save", type=Path)
    parser.add_argument("models", nargs="*", type=one_of(MODELS), default=list(MODELS))
    options = parser.parse_args()
    lines = [
        f"{date.today()}, {machine()}",
        "milliseconds per training step, median",
    ]
    print("\n".join(lines), flush=True)
    for threads in options.threads:
        lines += ["", f"threads of each side: {threads or 'its default'}", heading()]
        print("\n".join(lines[-3:]), flush=True)
        for name in options.models:
            lines.append(row(name, options.rounds, threads))
            print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
