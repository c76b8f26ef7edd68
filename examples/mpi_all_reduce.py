"""All-reduce: every rank contributes a number, every rank ends with the sum.

mpiexec -n 3 python examples/mpi_all_reduce.py
"""

import sys

import numpy as np

import bireme.distributed as dist

CONTRIBUTIONS = [1.0, 2.0, -3.0]


def main(rank: int) -> None:
    x = np.array([CONTRIBUTIONS[rank]])
    dist.all_reduce(x, op=dist.reduce_op.SUM)
    sys.stdout.write(f"Rank {rank} has {dist.text(x)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    dist.init_process_group()
    main(dist.get_rank())
