"""MPISymetricRoleMaker: under mpiexec half of the processes are servers."""

import importlib.util

import pytest

from bireme.errors import UnsupportedError
from bireme.fleet.api.role_makers import MPISymetricRoleMaker
from tests.collective.test_mpi import mpiexec, needs_mpi


class TestUnderMpiexec:
    pytestmark = [pytest.mark.wire, *needs_mpi]

    def test_even_ranks_serve_and_odd_ranks_train(self) -> None:
        ended = mpiexec(4, "-m", "tests.fleet.api.symmetric_job")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        workers = sorted(line for line in ended.stdout.splitlines() if line.startswith("worker"))
        assert workers == ["worker 0 of 2: 3", "worker 1 of 2: 3"]


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is not None, reason="mpi4py is here")
def test_without_mpi4py_the_error_names_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="needs mpi4py") as found:
        MPISymetricRoleMaker().generate_role()
    assert isinstance(found.value, UnsupportedError)
