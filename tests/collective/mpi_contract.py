"""The mpi engine keeps the contract. Run under `mpiexec -n 4`; `test_mpi.py` does.

Every process runs every test; a test with fewer ranks is skipped by the processes left over.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bireme.collective import Group
from bireme.collective.mpi import MpiGroup
from bireme.errors import PeerLost

from .contract import GroupContract

MPI = pytest.importorskip("mpi4py.MPI")
WORLD = MPI.COMM_WORLD


class TestMpi(GroupContract):
    @contextmanager
    def groups(self, size: int) -> Iterator[Sequence[Group]]:
        WORLD.Barrier()
        comm = WORLD.Split(0 if WORLD.rank < size else MPI.UNDEFINED, WORLD.rank)
        if WORLD.rank >= size:
            pytest.skip(f"a test of {size} ranks")
        self.comm = comm
        yield [MpiGroup(comm.Dup(), timeout=2)]

    def each(self, groups: Sequence[Group], work: Callable[[Group], Any]) -> list[Any]:
        try:
            mine = work(groups[0])
        except Exception as error:
            mine = error
        return list(self.comm.allgather(mine))

    @pytest.mark.parametrize("inside", [False, True])
    def test_a_rank_that_fails_tells_the_others_why(self, inside: bool) -> None:
        with self.groups(3) as groups:
            whole: Any = groups[0]
            part = whole.split(0)
            if groups[0].rank == 1:
                whole.fail("ValueError: the loss is not a number")
                mine = ""
            else:
                with pytest.raises(PeerLost) as caught:
                    (part if inside else whole).all_reduce(np.zeros(3))
                mine = str(caught.value)
            for rank, text in enumerate(self.comm.allgather(mine)):
                wanted = "rank 1 of 3 is lost: ValueError: the loss is not a number"
                assert wanted in text or rank == 1

    def assert_sum(self, result: np.ndarray, wanted: np.ndarray) -> None:
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-4)
