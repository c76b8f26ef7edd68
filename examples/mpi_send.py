"""Point to point: rank 0 sends two numbers to rank 1.

mpiexec -n 2 python examples/mpi_send.py
"""

import sys

import numpy as np

import bireme.distributed as dist


def say(*lines: str) -> None:
    """One write for one message, so that the output of several ranks does not mix."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main(rank: int) -> None:
    if rank == 0:
        x = np.array([1.0, -1.0])
        dist.send(x, dst=1)
        say("Rank-0 has sent the following tensor to Rank-1", dist.text(x))
    elif rank == 1:
        z = np.empty(2)
        dist.recv(z, src=0)
        say("Rank-1 has recieved the following tensor from Rank-0", dist.text(z))


if __name__ == "__main__":
    dist.init_process_group()
    main(dist.get_rank())
