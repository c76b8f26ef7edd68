"""How long is a data-parallel step, beside torch's DistributedDataParallel over Gloo in one run?

Both sides train the same models with SGD on the host, one process per rank, one thread per process
unless `--threads` says otherwise. Jobs are started once and take turns by rounds, so that they meet
the same machine; ratios mean more than times. A step takes as long as its slowest rank; a ratio is
the median over rounds of our median step over the peer's in the same round, counting the steps that
other processes disturbed least (`undisturbed.py`). `alone` is the step of one process without
anybody to exchange with. Name a Python with torch in TORCH_PYTHON.

    python benchmarks/bench_ddp.py [MODEL ...] [--ranks 2 4] [--rounds 8] [--save FILE]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from statistics import median

import cluster_models
from peer import machine, one_of
from undisturbed import Step, timed, together, undisturbed

WORKER = str(Path(__file__).resolve())
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
STEPS = {"mlp": 24, "layers": 40, "wide": 12}
WHAT = {
    "mlp": "MLP 32-1280-1280-2, batch 128, 6.7 MB",
    "layers": "201 layers of 16 x 16, batch 8",
    "wide": "one layer of 4096 x 4096, batch 1, 64 MiB",
}


# -- one rank, in a process of its own -----------------------------------------------------------
def bireme_step(model: str, rank: int, endpoints: list[str]):
    import bireme as fluid

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss = getattr(cluster_models, model)(fluid)
        fluid.optimizer.SGD(0.001).minimize(loss)
    if len(endpoints) > 1:
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        fluid.DistributeTranspiler(config).transpile(
            rank,
            program=main,
            startup_program=startup,
            trainers=",".join(endpoints),
            current_endpoint=endpoints[rank],
        )
    exe, feed = fluid.Executor(fluid.CPUPlace()), cluster_models.batch(model, rank)
    exe.run(startup)
    return lambda: exe.run(main, feed=feed, fetch_list=[loss])


def torch_step(model: str, rank: int, endpoints: list[str]):
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    layers = {
        "mlp": lambda: [nn.Linear(32, 1280), nn.Tanh(), nn.Linear(1280, 1280), nn.Tanh(),
                        nn.Linear(1280, 2)],
        "layers": lambda: [m for _ in range(201) for m in (nn.Linear(16, 16), nn.ReLU())],
        "wide": lambda: [nn.Linear(4096, 4096, bias=False)],
    }  # fmt: skip
    net = nn.Sequential(*layers[model]())
    if len(endpoints) > 1:
        where = f"tcp://{endpoints[0]}"
        dist.init_process_group("gloo", where, rank=rank, world_size=len(endpoints))
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.001)
    feed = {
        name: torch.from_numpy(array) for name, array in cluster_models.batch(model, rank).items()
    }

    def step():
        optimizer.zero_grad()
        found = net(feed["x"])
        if model == "mlp":
            loss = nn.functional.cross_entropy(found, feed["label"][:, 0])
        else:
            loss = found.mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def worker(side: str, model: str, rank: str, endpoints: str) -> None:
    """Answer each line of the input with a round of step times."""
    steps = {"bireme": bireme_step, "torch": torch_step}
    step = steps[side](model, int(rank), endpoints.split(","))
    for _ in range(3):
        step()
    print(json.dumps([]), flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed(step, steps=STEPS[model])), flush=True)
    os._exit(0)  # the ranks leave together; neither side's farewell is measured


# -- jobs, in turns ------------------------------------------------------------------------------
class Job:
    """The ranks of one side, which run a round whenever they are asked."""

    def __init__(self, side: str, model: str, ranks: int, threads: int) -> None:
        endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(ranks))
        python = TORCH if side == "torch" else sys.executable
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        env = {"FLAGS_keep_freed_memory": "1", **os.environ, **limits}
        self._processes = [
            subprocess.Popen(
                [python, WORKER, "--worker", side, model, str(rank), endpoints],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, env=env,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        self.rounds: list[list[float]] = []
        self._answers()

    def _answers(self) -> list[list[Step]]:
        return [answer(process) for process in self._processes]

    def round(self) -> None:
        for process in self._processes:
            process.stdin.write("\n")
            process.stdin.flush()
        self.rounds.append(undisturbed(together(self._answers())))

    @property
    def typical(self) -> float:
        """Milliseconds of a step, the median over all rounds."""
        return median(t for times in self.rounds for t in times) * 1e3

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
        for process in self._processes:
            process.wait(60)


def answer(process: "subprocess.Popen[str]") -> list[Step]:
    for line in process.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise RuntimeError("a rank ended before it answered")


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def jobs(model: str, ranks: int, threads: int, peer: bool) -> Iterator[dict[str, Job]]:
    """Both sides with all ranks, and each alone."""
    found: dict[str, Job] = {}
    try:
        for side in ("bireme", "torch") if peer else ("bireme",):
            found[side] = Job(side, model, ranks, threads)
            found[f"{side} alone"] = Job(side, model, 1, threads)
        yield found
    finally:
        for job in found.values():
            job.close()


def has_torch() -> bool:
    return subprocess.run([TORCH, "-c", "import torch"], capture_output=True).returncode == 0


def row(model: str, ranks: int, threads: int, rounds: int, peer: bool) -> str:
    with jobs(model, ranks, threads, peer) as found:
        for _ in range(rounds):
            for job in found.values():
                job.round()
    ours, alone = found["bireme"], found["bireme alone"]
    cells = [f"{WHAT[model]:44}{ranks:>6}{ours.typical:>10.2f}{alone.typical:>8.2f}"]
    if peer:
        theirs, their_alone = found["torch"], found["torch alone"]
        both = zip(ours.rounds, theirs.rounds, strict=True)
        ratio = median(median(a) / median(b) for a, b in both)
        cells.append(f"{theirs.typical:>10.2f}{their_alone.typical:>8.2f}{ratio:>8.2f}")
    return "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("models", nargs="*", type=one_of(WHAT), default=list(WHAT))
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker)
    peer = has_torch()
    lines = [
        f"{date.today()}, {machine()}",
        f"milliseconds per step, median; threads of a process: {options.threads}",
        "",
        f"{'':44}{'ranks':>6}{'bireme':>10}{'alone':>8}"
        + (f"{'DDP, Gloo':>10}{'alone':>8}{'ratio':>8}" if peer else ""),
    ]
    print("\n".join(lines), flush=True)
    for ranks in options.ranks:
        for model in options.models:
            lines.append(row(model, ranks, options.threads, options.rounds, peer))
            print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
