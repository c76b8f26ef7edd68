"""One process of a message-passing job: makes every call and checks what it gets.

Usage: rank_script.py INIT_METHOD [RANK WORLD_SIZE]; without numbers the environment has them.
"""

import array
import sys

import numpy as np

import bireme.distributed as dist


def check_all(rank: int, size: int) -> None:
    everyone = np.arange(size, dtype=np.float32)

    x = np.array([rank], np.float32)
    assert dist.all_reduce(x) is None
    assert x[0] == everyone.sum()

    work = dist.all_reduce(x, op=dist.reduce_op.MAX, async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()
    assert x[0] == everyone.sum()

    x[:] = rank + 1
    dist.reduce(x, dst=1, op=dist.ReduceOp.PRODUCT)
    assert x[0] == (np.prod(everyone + 1) if rank == 1 else rank + 1)

    dist.broadcast(x, src=size - 1)
    assert x[0] == (np.prod(everyone + 1) if size == 2 else size)

    parts = [np.empty(2, np.float32) for _ in range(size)]
    dist.all_gather(parts, np.full(2, rank, np.float32))
    assert [p.tolist() for p in parts] == [[r, r] for r in range(size)]

    dist.gather(np.full(2, -rank, np.float32), parts if rank == 1 else None, dst=1)
    assert parts[size - 1][0] == (1 - size if rank == 1 else size - 1)

    out = np.empty(2, np.float32)
    dist.scatter(out, [np.full(2, 10 + r, np.float32) for r in range(size)] if rank == 0 else None)
    assert out.tolist() == [10 + rank] * 2

    dist.reduce_scatter(out, [np.full(2, r, np.float32) for r in range(size)])
    assert out.tolist() == [rank * size] * 2
    dist.barrier()


def check_letters(rank: int, size: int) -> None:
    to, source = (rank + 1) % size, (rank - 1) % size
    got = array.array("d", [0.0, 0.0])
    sending = dist.isend(array.array("d", [rank, -rank]), to)
    receiving = dist.irecv(got, source)
    assert receiving.wait() == source
    sending.wait()
    assert list(got) == [source, -source]
    if rank:
        dist.send(np.array([rank]), 0, tag=rank)
    else:
        from_any = np.zeros(1, np.int64)
        assert [dist.recv(from_any, tag=r) for r in range(size - 1, 0, -1)] == list(
            range(size - 1, 0, -1)
        )


def check_groups(rank: int, size: int) -> None:
    ends = dist.new_group([size - 1, 0])
    if rank in (0, size - 1):
        assert dist.get_rank(ends) == (0 if rank else 1)
        assert dist.get_world_size(ends) == 2
        x = np.array([rank])
        dist.broadcast(x, src=size - 1, group=ends)
        assert x[0] == size - 1
        if rank == 0:
            dist.send(np.array([5]), size - 1, group=ends)
        else:
            assert dist.recv(x, group=ends) == 0
    elif size > 2:
        assert ends == dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(ends) == -1
    dist.barrier()


def main(init_method: str, rank: int = -1, size: int = -1) -> None:
    backend = "mpi" if init_method == "mpi" else "gloo"
    method = None if init_method == "mpi" else init_method
    dist.init_process_group(backend, method, timeout=30, rank=rank, world_size=size)
    assert dist.get_backend() == backend
    check_all(dist.get_rank(), dist.get_world_size())
    check_letters(dist.get_rank(), dist.get_world_size())
    check_groups(dist.get_rank(), dist.get_world_size())
    sys.stdout.write(f"rank {dist.get_rank()} is content\n")
    dist.destroy_process_group()
    assert not dist.is_initialized()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
