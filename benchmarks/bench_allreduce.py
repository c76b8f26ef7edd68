"""How long does an all-reduce take, beside Gloo (torch, CPU) and bare mpi4py in one run?

Rounds of all variants alternate, so that all meet the same machine; ratios mean more than times.
`null` is the same job without the all-reduce: two barriers. Peers are optional: name a Python
with torch in TORCH_PYTHON; mpi rows need mpiexec and mpi4py.

    python benchmarks/bench_allreduce.py [--megabytes 64] [--ranks 2 4] [--rounds 5] [--save FILE]
"""

import argparse
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

WORKER = Path(__file__).resolve()
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
REPEATS = 6  # in one round of one variant; the first is a warm-up
SMALL = 64  # numbers of the array for latency


# -- one rank, in a process of its own -----------------------------------------------------------


def timed(act, barrier, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats + 1):
        barrier()
        begin = perf_counter()
        act()
        barrier()
        times.append(perf_counter() - begin)
    return times[1:]


def run_bireme(rank: int, size: int, port: int, count: int, payload: str) -> list[float]:
    import numpy as np

    from bireme.collective import Settings, World

    world = World(rank, size, f"127.0.0.1:{port}", "127.0.0.1:0", Settings(payload=payload))
    group, array = world.group(), np.full(count, rank, np.float32)
    times = timed(lambda: group.all_reduce(array, "max"), group.barrier, REPEATS)
    world.close()
    return times


def run_null(rank: int, size: int, port: int, count: int) -> list[float]:
    from bireme.collective import Settings, World

    world = World(rank, size, f"127.0.0.1:{port}", "127.0.0.1:0", Settings())
    group = world.group()
    times = timed(lambda: None, group.barrier, REPEATS)
    world.close()
    return times


def run_gloo(rank: int, size: int, port: int, count: int) -> list[float]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    array = torch.full((count,), float(rank))
    return timed(lambda: dist.all_reduce(array, dist.ReduceOp.MAX), dist.barrier, REPEATS)


def run_mpi(rank: int, size: int, port: int, count: int) -> dict[str, list[float]]:
    """Both in the same processes, in turns: two jobs differ by more than what is to be measured."""
    import numpy as np
    from mpi4py import MPI

    from bireme.collective.mpi import MpiGroup

    comm, array = MPI.COMM_WORLD, np.full(count, rank, np.float32)
    group = MpiGroup(comm.Dup(), timeout=60)
    acts = {
        "bireme mpi": lambda: group.all_reduce(array, "max"),
        "bare mpi4py": lambda: comm.Allreduce(MPI.IN_PLACE, array, MPI.MAX),
    }
    times: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(REPEATS):
        for name in sorted(acts, reverse=bool(turn % 2)):
            times[name] += timed(acts[name], comm.Barrier, 1)
    return times


VARIANTS = {
    "null": run_null,
    "bireme shared": lambda *a: run_bireme(*a, payload="auto"),
    "bireme sockets": lambda *a: run_bireme(*a, payload="sockets"),
    "gloo": run_gloo,
    "mpi": run_mpi,
}
PEERS = {"bireme shared": "gloo", "bireme sockets": "gloo", "bireme mpi": "bare mpi4py"}


def worker(variant: str, rank: str, size: str, port: str, count: str) -> None:
    number = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", rank)))
    found = VARIANTS[variant](number, int(size), int(port), int(count))
    if number == 0:
        for name, times in (found if isinstance(found, dict) else {variant: found}).items():
            print("times", name.replace(" ", "_"), *times, flush=True)


# -- the table -----------------------------------------------------------------------------------


def job(variant: str, size: int, count: int) -> dict[str, list[float]]:
    """Start one process per rank and return rank 0's times by what was timed."""
    words = [str(WORKER), "--worker", variant]
    numbers = [str(size), str(free_port()), str(count)]
    python = TORCH if variant == "gloo" else sys.executable
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    if "mpi" in variant:
        commands = [["mpiexec", "-n", str(size), python, *words, "0", *numbers]]
    else:
        commands = [[python, *words, str(rank), *numbers] for rank in range(size)]
    started = [
        subprocess.Popen(
            c, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        for c in commands
    ]
    texts = [process.communicate(timeout=120)[0] for process in started]
    lines = [line.split() for text in texts for line in text.splitlines()]
    rows = [line for line in lines if line[:1] == ["times"]]
    return {row[1].replace("_", " "): [float(n) for n in row[2:]] for row in rows}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def available() -> list[str]:
    """The variants that can run here."""
    with_torch = subprocess.run([TORCH, "-c", "import torch"], capture_output=True).returncode == 0
    with_mpi = shutil.which("mpiexec") and importlib.util.find_spec("mpi4py")
    return [
        name
        for name in VARIANTS
        if (with_torch or name != "gloo") and (with_mpi or "mpi" not in name)
    ]


def table(size: int, count: int, rounds: int) -> list[str]:
    names = available()
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        for variant in names:
            for name, found in job(variant, size, count).items():
                times.setdefault(name, []).extend(found)
    medians = {name: median(found) for name, found in times.items() if found}
    bytes_text = f"{count * 4 / 2**20:g} MiB" if count * 4 >= 2**20 else f"{count * 4} bytes"
    lines = [f"all-reduce of {bytes_text}, {size} ranks, milliseconds"]
    lines.append(f"  {'':16}{'median':>10}{'least':>10}{'times its peer':>18}")
    for name, middle in medians.items():
        peer = PEERS.get(name, "")
        ratio = f"{middle / medians[peer]:.2f} ({peer})" if peer in medians else ""
        least = min(times[name])
        lines.append(f"  {name:16}{1e3 * middle:10.3f}{1e3 * least:10.3f}{ratio:>22}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    chosen = parser.parse_args()
    lines = [f"{os.cpu_count()} cores, {chosen.rounds} rounds of {REPEATS}"]
    for size in chosen.ranks:
        for count in (chosen.megabytes << 18, SMALL):
            lines += ["", *table(size, count, chosen.rounds)]
    text = "\n".join(lines)
    print(text)
    if chosen.save:
        chosen.save.write_text(text + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main()
