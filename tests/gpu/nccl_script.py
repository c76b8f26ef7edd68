"""One rank with a device: makes every call of the Group port by NCCL and checks the results.

Usage: nccl_script.py RANK SIZE PORT [MODE]. Ranks may share one device when NCCL_HOSTID differs.
In mode "die" the last rank is killed between two all-reduces, and the others say who is gone.
"""

import os
import signal
import sys

import cupy
import numpy as np

from bireme.collective import Settings, World
from bireme.collective.nccl import nccl_group
from bireme.errors import CollectiveMismatch, PeerError


def check(group) -> None:
    rank, size = group.rank, group.size
    everyone = np.arange(size, dtype=np.float32)
    for length in (1, 1000, 1 << 20):
        x = cupy.full(length, rank + 1, cupy.float32)
        group.all_reduce(x)
        assert float(x.min()) == float(x.max()) == (everyone + 1).sum()
        group.broadcast(x, size - 1)
        rows = cupy.empty((size, length), cupy.float32)
        group.all_gather(rows, cupy.full(length, rank, cupy.float32))
        assert (rows.get() == everyone[:, None]).all()
        out = cupy.empty(length, cupy.float32)
        group.reduce_scatter(out, rows)
        assert float(out[0]) == rank * size
        group.gather(rows if rank == 0 else None, out, 0)
        group.scatter(out, rows if rank == 0 else None, 0)
        assert float(out[-1]) == rank * size
    bits = cupy.asarray([1 << rank], cupy.int32)
    group.all_reduce(bits, "bor")
    assert int(bits[0]) == (1 << size) - 1
    if size > 1:
        check_pairs(group)


def check_pairs(group) -> None:
    x = cupy.full(5, group.rank, cupy.float64)
    for tag in (0, 3):
        if group.rank == 0:
            group.send(x, 1, tag)
        elif group.rank == 1:
            assert group.recv(x, None, tag) == 0
            assert float(x.sum()) == 0.0
    half = group.split(0 if group.rank < 2 else None)
    if half is not None:
        half.all_reduce(x)
    problem: object = None
    try:
        group.all_reduce(cupy.zeros(3 + group.rank, cupy.float32))
    except CollectiveMismatch as error:
        problem = error
    assert "disagree" in str(problem)


def die(group) -> None:
    """Ends with the error that names the rank that was killed."""
    x = cupy.ones(1 << 22, cupy.float32)
    for step in range(10**6):
        group.all_reduce(x, "max")
        x.sum().get()
        if step == 20 and group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main(rank: int, size: int, port: str, mode: str = "check") -> None:
    settings = Settings(heartbeat=3, timeout=60)
    world = World(rank, size, f"127.0.0.1:{port}", "127.0.0.1:0", settings)
    group = nccl_group(world, "test", device=rank % cupy.cuda.runtime.getDeviceCount())
    if mode == "die":
        try:
            die(group)
        except PeerError as error:
            print(f"rank {rank} leaves: {error.message}", flush=True)
            os._exit(3)
    check(group)
    group.close()
    world.close()
    print(f"rank {rank} is content", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
