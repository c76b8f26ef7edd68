"""The mpi engine, under mpiexec where there is one."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

needs_mpi = [
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="there is no mpiexec"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not there"),
]
pytestmark = [pytest.mark.wire, *needs_mpi]


def mpiexec(ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command under Open MPI or MPICH, also as root and on few cores."""
    extra = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["mpiexec", "-n", str(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **extra},
        cwd=HERE.parents[1],
    )


@pytest.mark.slow
def test_the_mpi_engine_keeps_the_contract():
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "mpi_contract.py")]
    ended = mpiexec(4, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" passed") == 4
