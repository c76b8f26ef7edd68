"""On a CUDA device: all-reduce beside torch's NCCL, and ResNet-50 with and without cuDNN.

Every measurement is a process of its own; those of one table alternate. Two ranks share the one
device as two hosts would, over sockets: that shows that it works, and says nothing of links between
devices. Without a device it says so and ends. Peers are optional: name a Python with torch in
TORCH_PYTHON.

    python benchmarks/bench_gpu.py [allreduce] [resnet] [--save-to benchmarks/results]
"""

import argparse
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

WORKER = Path(__file__).resolve()
TORCH = os.environ.get("TORCH_PYTHON", sys.executable)
SIZES = (256, 1 << 20, 64 << 20, 256 << 20)  # bytes
REPEATS, ROUNDS, STEPS = 20, 3, 20


# -- one rank, in a process of its own -----------------------------------------------------------


def timed(act: Callable[[], object], finish: Callable[[], object]) -> float:
    """Seconds of one call, of many that are queued one after the other."""
    for _ in range(5):
        act()
    finish()
    begin = perf_counter()
    for _ in range(REPEATS):
        act()
    finish()
    return (perf_counter() - begin) / REPEATS


def bireme_allreduce(rank: int, size: int, port: int) -> None:
    import cupy

    from bireme.collective import Settings, World
    from bireme.collective.nccl import nccl_group

    world = World(rank, size, f"127.0.0.1:{port}", "127.0.0.1:0", Settings())
    group = nccl_group(world, "bench", device=0)
    for count in SIZES:
        array = cupy.full(count // 4, rank, cupy.float32)
        act = lambda array=array: group.all_reduce(array, "max")  # noqa: E731
        report(rank, count, timed(act, cupy.cuda.Device().synchronize))
    group.close()
    world.close()


def torch_allreduce(rank: int, size: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    for count in SIZES:
        array = torch.full((count // 4,), float(rank), device="cuda")
        act = lambda array=array: dist.all_reduce(array, dist.ReduceOp.MAX)  # noqa: E731
        report(rank, count, timed(act, torch.cuda.synchronize))
    dist.destroy_process_group()


def train_resnet(batch: int, size: int, *, with_cudnn: bool) -> None:
    """Steps that fetch nothing, so that the host may run ahead; images per second."""
    if not with_cudnn:
        sys.modules["cudnn"] = None  # type: ignore[assignment]  # an import finds nothing
    import cupy
    import numpy as np
    from fluid_models import resnet

    import bireme as fluid
    from bireme.ops import cudnn

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss, _ = resnet(fluid, size, 1000)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    draw = np.random.default_rng(0)
    image = draw.standard_normal((batch, 3, size, size)).astype(np.float32)
    feed = {"x": cupy.asarray(image), "label": cupy.asarray(draw.integers(0, 1000, (batch, 1)))}
    with fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(startup)
        first = executor.run(main, feed=feed, fetch_list=[loss])[0]
        act = lambda: executor.run(main, feed=feed)  # noqa: E731
        seconds = timed(act, cupy.cuda.Device().synchronize)
        last = executor.run(main, feed=feed, fetch_list=[loss])[0]
    used = cudnn._library() is not None
    if used is not with_cudnn:
        return
    print("found", batch, batch / seconds, float(first.item()), float(last.item()), flush=True)


def report(rank: int, count: int, seconds: float) -> None:
    if rank == 0:
        print("found", count, seconds, flush=True)


def work(what: str, *words: str) -> None:
    numbers = [int(word) for word in words]
    if what == "bireme":
        bireme_allreduce(*numbers)
    elif what == "torch":
        torch_allreduce(*numbers)
    else:
        train_resnet(*numbers, with_cudnn=what == "cudnn")


# -- the tables ----------------------------------------------------------------------------------


def started(what: str, words: list[object], rank: int = 0) -> subprocess.Popen[str]:
    python = TORCH if what == "torch" else sys.executable
    alone = {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_CUMEM_ENABLE": "0"}
    command = [python, str(WORKER), "--work", what, *map(str, words)]
    quiet = None if os.environ.get("VERBOSE") else subprocess.DEVNULL
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=quiet, text=True, env={**os.environ, **alone}
    )


def lines_of(processes: list[subprocess.Popen[str]]) -> list[list[float]]:
    """What rank 0 found; nothing where a process failed or took too long."""
    try:
        texts = [process.communicate(timeout=180)[0] for process in processes]
    except subprocess.TimeoutExpired:
        return []
    finally:
        for process in processes:
            process.kill()
    rows = [line.split()[1:] for text in texts for line in text.splitlines()]
    return [[float(word) for word in row] for row in rows if row]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def allreduce() -> list[str]:
    text = ["all-reduce on one device: milliseconds, GB/s of the array, times torch's"]
    for ranks in (1, 2):
        times: dict[str, dict[int, list[float]]] = {"bireme": {}, "torch": {}}
        for _ in range(ROUNDS):
            for who, found in times.items():
                port = free_port()
                jobs = [started(who, [rank, ranks, port], rank) for rank in range(ranks)]
                for count, seconds in lines_of(jobs):
                    found.setdefault(int(count), []).append(seconds)
        text += ["", f"{ranks} rank(s)", *_rows(times)]
    return text


def _rows(times: dict[str, dict[int, list[float]]]) -> list[str]:
    rows = []
    for count in SIZES:
        ours, peer = (times[who].get(count) for who in ("bireme", "torch"))
        if ours is None:
            rows.append(f"  {count:>12} bytes: the run failed; VERBOSE=1 shows why")
            continue
        line = (
            f"  {count:>12} bytes {1e3 * median(ours):10.3f} ms {count / median(ours) / 1e9:9.2f}"
        )
        rows.append(line + (f"  {median(ours) / median(peer):.2f} x torch" if peer else ""))
    return rows


def resnets() -> list[str]:
    text = ["ResNet-50, 224 x 224, float32, one device: images per second (first and last loss)"]
    for batch in (32, 64):
        found: dict[str, list[list[float]]] = {"cudnn": [], "products": []}
        for _ in range(ROUNDS):
            for how, rows in found.items():
                rows += lines_of([started(how, [batch, 224])])
        for how, rows in found.items():
            label = "with cuDNN" if how == "cudnn" else "without cuDNN"
            shown = "could not run; VERBOSE=1 shows why"
            if rows:
                _, _, first, last = rows[-1]
                shown = f"{median(row[1] for row in rows):9.1f}   ({first:.4f}, {last:.4f})"
            text.append(f"  batch {batch:3}, {label:14} {shown}")
    return text


def without_device() -> str:
    """Why nothing can be measured here; empty where it can."""
    try:
        count = importlib.import_module("cupy").cuda.runtime.getDeviceCount()
    except ImportError:
        return "CuPy is not installed"
    except Exception as error:  # CuPy has one class of error per layer
        return f"no CUDA device ({error})"
    return "" if count else "no CUDA device"


def machine() -> str:
    """The device, the driver and the libraries, in one line each."""
    import cupy

    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    nccl = importlib.import_module("cupy.cuda.nccl")
    return f"{name}; CuPy {cupy.__version__}, NCCL {nccl.get_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", default=["allreduce", "resnet"])
    parser.add_argument("--save-to", type=Path)
    chosen = parser.parse_args()
    if reason := without_device():
        print(f"skipped: {reason}")
        return
    for name, table in (("allreduce", allreduce), ("resnet", resnets)):
        if name in chosen.tables:
            text = "\n".join([machine(), "", *table()])
            print(text, flush=True)
            if chosen.save_to:
                (chosen.save_to / f"gpu_{name}.txt").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()
