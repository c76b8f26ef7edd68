"""The mpi engine, under mpiexec where there is one."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bireme.collective import mpi
from bireme.errors import ConfigError

HERE = Path(__file__).parent

needs_mpi = [
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="there is no mpiexec"),
    pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not there"),
]


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


def test_a_launcher_of_another_mpi_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = SimpleNamespace(
        COMM_WORLD=SimpleNamespace(Get_size=lambda: 1), get_vendor=lambda: ("Open MPI", (4, 1, 4))
    )
    monkeypatch.setattr(mpi, "_mpi", lambda: alone)
    with pytest.raises(ConfigError, match="mpiexec started 1 processes") as caught:
        mpi.MpiSession(0, 2, 1.0)
    assert "mpiexec -n 2 of Open MPI" in str(caught.value)


@needs_mpi[0]
@needs_mpi[1]
@pytest.mark.wire
@pytest.mark.slow
def test_the_mpi_engine_keeps_the_contract():
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HERE / "mpi_contract.py")]
    ended = mpiexec(4, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" passed") == 4
