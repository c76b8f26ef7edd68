"""What does a second thread bring? Operators and a residual stage, beside torch in one run.

Each case is a step: forward, mean, backward. Every side and number of threads is a process of its
own; they take turns, case by case, so that they meet the same machine; ratios mean more than times.
`gain` is the time with one thread over that with more, the median over rounds; of a round, the
steps that other processes disturbed least count (`undisturbed.py`). The next table says what the
machine can gain: plain NumPy in one process, and in two at once that share nothing; no number of
threads gains more. The last one starts more processes than there are cores, all at once. Ours keeps
freed memory, as `bireme run` does. Name a Python with torch in TORCH_PYTHON.

    python benchmarks/bench_threads.py [--threads 2] [--rounds 6] [--save FILE] [CASE ...]
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import fluid_models
import numpy as np
from peer import machine, one_of
from undisturbed import timed, undisturbed

WORKER = str(Path(__file__).resolve())
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
ROUND = 0.15  # seconds

# What is fed, and a step on either side: layers are given as (fluid, x) and as (torch, nn).
CASES: dict[str, tuple[tuple[int, ...], Callable[..., Any], Callable[..., Any]]] = {
    "3 x 3 convolution 64 > 64, 28 x 28, batch 8": (
        (8, 64, 28, 28),
        lambda f, x: f.layers.conv2d(x, 64, 3, padding=1, bias_attr=False),
        lambda nn: nn.Conv2d(64, 64, 3, padding=1, bias=False),
    ),
    "1 x 1 convolution 64 > 256, 28 x 28, batch 8": (
        (8, 64, 28, 28),
        lambda f, x: f.layers.conv2d(x, 256, 1, bias_attr=False),
        lambda nn: nn.Conv2d(64, 256, 1, bias=False),
    ),
    "3 x 3 convolution 256 > 256, 14 x 14, batch 8": (
        (8, 256, 14, 14),
        lambda f, x: f.layers.conv2d(x, 256, 3, padding=1, bias_attr=False),
        lambda nn: nn.Conv2d(256, 256, 3, padding=1, bias=False),
    ),
    "batch norm, 256 x 28 x 28, batch 8": (
        (8, 256, 28, 28),
        lambda f, x: f.layers.batch_norm(x),
        lambda nn: nn.BatchNorm2d(256),
    ),
    "max pooling 3 x 3, 64 x 56 x 56, batch 16": (
        (16, 64, 56, 56),
        lambda f, x: f.layers.pool2d(x, 3, "max", 2, 1),
        lambda nn: nn.MaxPool2d(3, 2, 1),
    ),
    "product 128 x 1280 x 1280": (
        (128, 1280),
        lambda f, x: f.layers.fc(x, 1280, bias_attr=False),
        lambda nn: nn.Linear(1280, 1280, bias=False),
    ),
    "product 1024 x 1024 x 1024": (
        (1024, 1024),
        lambda f, x: f.layers.fc(x, 1024, bias_attr=False),
        lambda nn: nn.Linear(1024, 1024, bias=False),
    ),
    "tanh, 4,194,304 elements": (
        (2048, 2048),
        lambda f, x: f.layers.tanh(x),
        lambda nn: nn.Tanh(),
    ),
    "relu, 16,777,216 elements": (
        (4096, 4096),
        lambda f, x: f.layers.relu(x),
        lambda nn: nn.ReLU(),
    ),
    "small: 3 x 3 convolution 8 > 8, 14 x 14, batch 4": (
        (4, 8, 14, 14),
        lambda f, x: f.layers.conv2d(x, 8, 3, padding=1, bias_attr=False),
        lambda nn: nn.Conv2d(8, 8, 3, padding=1, bias=False),
    ),
    "small: batch norm, 16 x 14 x 14, batch 8": (
        (8, 16, 14, 14),
        lambda f, x: f.layers.batch_norm(x),
        lambda nn: nn.BatchNorm2d(16),
    ),
    "small: product 32 x 64 x 64": (
        (32, 64),
        lambda f, x: f.layers.fc(x, 64, bias_attr=False),
        lambda nn: nn.Linear(64, 64, bias=False),
    ),
    "small: tanh, 16,384 elements": (
        (128, 128),
        lambda f, x: f.layers.tanh(x),
        lambda nn: nn.Tanh(),
    ),
}
CEILINGS: dict[str, tuple[int, Callable[[Any, Any, Any], Any]]] = {
    "product 512 x 512 x 512": (1 << 18, lambda *all: np.matmul(*map(_square, all))),
    "tanh, 16,384 elements": (1 << 14, lambda a, b, c: np.tanh(a, out=c)),
    "sum, 65,536 elements": (1 << 16, lambda a, b, c: np.add(a, b, out=c)),
    "sum, 1,048,576 elements": (1 << 20, lambda a, b, c: np.add(a, b, out=c)),
    "sum, 16,777,216 elements": (1 << 24, lambda a, b, c: np.add(a, b, out=c)),
    "copy, 16,777,216 elements": (1 << 24, lambda a, b, c: np.copyto(c, a)),
}
STAGE = "residual stage 64 > 256, 28 x 28, batch 8"


# -- one side, in a process of its own -----------------------------------------------------------
def bireme_step(name: str) -> Callable[[], Any]:
    import bireme as fluid

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    shape, layer, _ = CASES.get(name, ((8, 64, 28, 28), None, None))
    with fluid.program_guard(main, startup):
        if layer is None:
            loss, optimizer, _ = fluid_models.bottleneck(fluid)
            optimizer.minimize(loss)
        else:
            x = fluid.layers.data("x", list(shape[1:]))
            x.stop_gradient = False
            loss = fluid.layers.mean(layer(fluid, x))
            grads = [grad.name for _, grad in fluid.backward.append_backward(loss)]
            grads += [n for n in main.global_block().vars if n == "x@GRAD"]
            for grad in grads:
                main.global_block().var(grad).persistable = True  # else nobody asks for it
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    feed = {"x": np.random.RandomState(0).rand(*shape).astype("float32")}
    return lambda: exe.run(main, feed=feed, fetch_list=[loss])


def torch_step(name: str) -> Callable[[], Any]:
    import torch
    from torch import nn

    shape, _, layer = CASES.get(name, ((8, 64, 28, 28), None, None))
    net = torch_stage(nn) if layer is None else layer(nn)
    x = torch.from_numpy(np.random.RandomState(0).rand(*shape).astype("float32"))
    x.requires_grad_()
    trains = torch.optim.SGD(net.parameters(), 0.01, 0.9) if layer is None else None

    def step() -> float:
        net.zero_grad()
        x.grad = None
        loss = net(x).mean()
        loss.backward()
        if trains is not None:
            trains.step()
        return loss.item()

    return step


def torch_stage(nn: Any) -> Any:
    class Block(nn.Module):
        def __init__(self, given: int) -> None:
            super().__init__()
            layers = []
            for into, out, size, act in ((given, 64, 1, 1), (64, 64, 3, 1), (64, 256, 1, 0)):
                layers += [nn.Conv2d(into, out, size, padding=size // 2, bias=False)]
                layers += [nn.BatchNorm2d(out), *[nn.ReLU()] * act]
            self.body = nn.Sequential(*layers)
            short = nn.Sequential(nn.Conv2d(given, 256, 1, bias=False), nn.BatchNorm2d(256))
            self.short = short if given != 256 else nn.Identity()

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.short(x) + self.body(x))

    return nn.Sequential(Block(64), Block(256), Block(256))


def numpy_step(name: str) -> Callable[[], Any]:
    size, work = CEILINGS[name]
    a, b, c = (np.ones(size, np.float32) for _ in range(3))
    return lambda: work(a, b, c)


def _square(flat: Any) -> Any:
    side = int(flat.size**0.5)
    return flat.reshape(side, side)


def worker(side: str, threads: str) -> None:
    """Answer each case in the input with the times of as many steps as fit a round."""
    if side == "torch":
        import torch

        torch.set_num_threads(int(threads))
    makers = {"bireme": bireme_step, "torch": torch_step, "numpy": numpy_step}
    steps: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in steps:
            steps[name] = makers[side](name)
            for _ in range(3):
                steps[name]()
        print(json.dumps(timed(steps[name], seconds=ROUND)), flush=True)


# -- the tables ----------------------------------------------------------------------------------
class Side:
    """A process that answers when it is asked for a case."""

    def __init__(self, side: str, threads: int) -> None:
        python = TORCH if side == "torch" else sys.executable
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        self._process = subprocess.Popen(
            [python, WORKER, "--worker", side, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={"FLAGS_keep_freed_memory": "1", **os.environ, **limits},
        )  # fmt: skip

    def ask(self, case: str) -> None:
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()

    def answer(self) -> float:
        """Seconds of a step, the median of a round's undisturbed steps."""
        for line in self._process.stdout:
            if line.startswith("["):
                return median(undisturbed(json.loads(line)))
        raise RuntimeError("a side ended before it answered")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def row(case: str, sides: dict[tuple[str, int], Side], rounds: int) -> str:
    times: dict[tuple[str, int], list[float]] = {key: [] for key in sides}
    for turn in range(rounds + 1):
        for key in sorted(sides, reverse=bool(turn % 2)):
            sides[key].ask(case)
            found = sides[key].answer()
            times[key] += [found] if turn else []  # the first is a warm-up
    cells = [f"{case:52}"]
    for name in dict.fromkeys(name for name, _ in sides):
        one, more = (times[key] for key in sorted(k for k in sides if k[0] == name))
        gain = median(a / b for a, b in zip(one, more, strict=True))
        cells.append(f"{median(one) * 1e3:10.3f}{median(more) * 1e3:10.3f}{gain:7.2f}")
    return "".join(cells)


def ceiling(case: str, sides: Sequence[Side], rounds: int) -> str:
    """How much more of it the machine does in two processes than in one."""
    alone, both = [], []
    for turn in range(rounds + 1):
        sides[0].ask(case)
        one = sides[0].answer()
        for side in sides:
            side.ask(case)
        found = [side.answer() for side in sides]
        if turn:
            alone.append(one)
            both.append(max(found))
    gain = median(len(sides) * a / b for a, b in zip(alone, both, strict=True))
    return f"{case:52}{median(alone) * 1e3:10.3f}{median(both) * 1e3:10.3f}{gain:7.2f}"


def crowd(name: str, threads: int, count: int, rounds: int) -> str:
    """The stage in `count` processes at once, each with so many threads."""
    sides = [Side(name, threads) for _ in range(count)]
    found = []
    for _ in range(rounds + 1):
        for side in sides:
            side.ask(STAGE)
        found.append([side.answer() for side in sides])
    for side in sides:
        side.close()
    times = [t for round_ in found[1:] for t in round_]
    return f"{name:10}{threads:>10}{count:>11}{median(times) * 1e3:12.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", type=one_of((STAGE, *CASES)), default=[STAGE, *CASES])
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker)
    peer = subprocess.run([TORCH, "-c", "import torch"], capture_output=True).returncode == 0
    names = ["bireme", "torch"] if peer else ["bireme"]
    lines = [f"{date.today()}, {machine()}", "milliseconds per step, median", ""]
    lines.append(f"{'':52}" + "".join(f"{name + ', threads':>20}{'':7}" for name in names))
    lines.append(f"{'':52}" + f"{1:>10}{options.threads:>10}{'gain':>7}" * len(names))
    print("\n".join(lines), flush=True)

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    sides = {(name, n): Side(name, n) for name in names for n in (1, options.threads)}
    for case in options.cases:
        tell(row(case, sides, options.rounds))
    for side in sides.values():
        side.close()
    tell("\nNumPy alone: one process, two at once, and how much more is done together")
    pair = [Side("numpy", 1) for _ in range(2)]
    for case in CEILINGS:
        tell(ceiling(case, pair, options.rounds))
    for side in pair:
        side.close()
    tell(f"\n{STAGE}, in several processes at once")
    tell(f"{'':10}{'threads':>10}{'processes':>11}{'ms per step':>12}")
    for name in names:
        for count in (1, 2 * (os.cpu_count() or 1)):
            tell(crowd(name, options.threads, count, max(1, options.rounds // 2)))
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
