"""The tutorial's two programs, and every call, under mpiexec where there is one."""

from pathlib import Path

import pytest

from ..collective.test_mpi import mpiexec, needs_mpi

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.wire, *needs_mpi]


def printed(ranks: int, script: Path, *words: str) -> list[str]:
    ended = mpiexec(ranks, str(script), *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return sorted(ended.stdout.splitlines())


def test_one_rank_sends_and_the_other_has_it():
    assert printed(2, ROOT / "examples" / "mpi_send.py") == [
        "Rank-0 has sent the following tensor to Rank-1",
        "Rank-1 has recieved the following tensor from Rank-0",
        "tensor([ 1., -1.])",
        "tensor([ 1., -1.])",
    ]


def test_all_ranks_have_the_sum():
    assert printed(3, ROOT / "examples" / "mpi_all_reduce.py") == [
        f"Rank {rank} has tensor([0.])" for rank in range(3)
    ]


def test_every_call_by_mpi():
    lines = printed(3, Path(__file__).with_name("rank_script.py"), "mpi")
    assert lines == [f"rank {rank} is content" for rank in range(3)]


def test_random_calls_by_mpi():
    lines = printed(3, Path(__file__).with_name("random_script.py"), "mpi", "-", "4")
    assert lines == [f"rank {rank} is content" for rank in range(3)]
