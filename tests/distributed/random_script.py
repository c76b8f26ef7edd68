"""One process that makes random calls, the same on every rank, and compares each with NumPy.

Usage: random_script.py BACKEND INIT_METHOD SEED [RANK WORLD_SIZE]. Every rank knows what all ranks
put in, so it knows what must come out; half-way through it leaves and begins again.
"""

import sys
from typing import Any

import numpy as np

import bireme.distributed as dist

CALLS = 60
REDUCTIONS = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "band": np.bitwise_and,
    "bxor": np.bitwise_xor,
}
SHAPES = ((), (1,), (3, 2), (0,), (7, 1, 5), (5000,), (70_000,))
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16")


class Calls:
    """Random calls on one group; `ranks` are its members in their order."""

    def __init__(self, seed: int, group: Any, ranks: list[int], me: int) -> None:
        self.draw, self.group, self.ranks, self.me = np.random.default_rng(seed), group, ranks, me

    def inputs(self, rows: int = 0) -> list[np.ndarray]:
        """What every rank puts in; with `rows`, a row for each rank."""
        shapes = SHAPES[1:] if rows else SHAPES
        shape = shapes[self.draw.integers(len(shapes))]
        dtype = DTYPES[self.draw.integers(len(DTYPES))]
        whole = (rows, *shape) if rows else shape
        return [np.asarray(self.draw.integers(0, 4, whole), dtype) for _ in self.ranks]

    def op(self, dtype: np.dtype) -> str:
        names = [n for n in REDUCTIONS if dtype.kind in "iu" or n[0] != "b"]
        return names[self.draw.integers(len(names))]

    def fold(self, op: str, arrays: list[np.ndarray]) -> np.ndarray:
        total = arrays[0]
        for array in arrays[1:]:
            total = REDUCTIONS[op](total, array)
        return total

    def mine(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Ours, at times not contiguous."""
        array = arrays[self.me]
        if array.ndim and self.draw.integers(2):
            return np.repeat(array, 2, axis=0)[::2]
        self.draw.integers(1)
        return array.copy()

    def call(self) -> None:
        kinds = "all_reduce reduce broadcast all_gather gather scatter reduce_scatter".split()
        getattr(self, kinds[self.draw.integers(len(kinds))])()

    def all_reduce(self) -> None:
        arrays = self.inputs()
        op, x = self.op(arrays[0].dtype), self.mine(arrays)
        later = bool(self.draw.integers(2))
        work = dist.all_reduce(x, op, self.group, async_op=later)
        if work is not None:
            work.wait()
        self.same(x, self.fold(op, arrays))

    def reduce(self) -> None:
        arrays, root = self.inputs(), self.draw.integers(len(self.ranks))
        op, x = self.op(arrays[0].dtype), self.mine(arrays)
        dist.reduce(x, self.ranks[root], op, self.group)
        self.same(x, self.fold(op, arrays) if self.me == root else arrays[self.me])

    def broadcast(self) -> None:
        arrays, root = self.inputs(), self.draw.integers(len(self.ranks))
        x = self.mine(arrays)
        dist.broadcast(x, self.ranks[root], self.group)
        self.same(x, arrays[root])

    def all_gather(self) -> None:
        arrays = self.inputs()
        x, outs = self.mine(arrays), [np.empty_like(a) for a in arrays]
        dist.all_gather(outs, x, self.group)
        for out, array in zip(outs, arrays, strict=True):
            self.same(out, array)

    def gather(self) -> None:
        arrays, root = self.inputs(), self.draw.integers(len(self.ranks))
        x = self.mine(arrays)
        outs = [np.empty_like(a) for a in arrays] if self.me == root else None
        dist.gather(x, outs, self.ranks[root], self.group)
        for out, array in zip(outs or [], arrays, strict=self.me == root):
            self.same(out, array)

    def scatter(self) -> None:
        arrays, root = self.inputs(len(self.ranks)), self.draw.integers(len(self.ranks))
        out = np.empty_like(arrays[root][0])
        given = list(arrays[root]) if self.me == root else None
        dist.scatter(out, given, self.ranks[root], self.group)
        self.same(out, arrays[root][self.me])

    def reduce_scatter(self) -> None:
        arrays = self.inputs(len(self.ranks))
        op, out = self.op(arrays[0].dtype), np.empty_like(arrays[0][0])
        dist.reduce_scatter(out, list(arrays[self.me]), op, self.group)
        self.same(out, self.fold(op, [array[self.me] for array in arrays]))

    def same(self, found: np.ndarray, wanted: np.ndarray) -> None:
        np.testing.assert_array_equal(found, wanted)


def run(seed: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = Calls(seed, None, list(range(size)), rank)
    members = [size - 1, 0]
    group = dist.new_group(members)
    inside = rank in members
    some = Calls(seed + 1, group, members, members.index(rank)) if inside else None
    for number in range(CALLS):
        if number % 3 == 2 and some is not None:
            some.call()
        everyone.call()


def main(backend: str, method: str, seed: int, rank: int = -1, size: int = -1) -> None:
    for again in range(1 if backend == "mpi" else 2):
        where = None if backend == "mpi" else method
        dist.init_process_group(backend, where, timeout=30, rank=rank, world_size=size)
        run(seed + 10 * again)
        dist.barrier()
        me = dist.get_rank()
        dist.destroy_process_group()
    sys.stdout.write(f"rank {me} is content\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
