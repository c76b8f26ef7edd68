"""The engines of collectives, and the choice among them.

A GPU uses nccl, a process under mpiexec mpi, any other grpc; FLAGS_collective_engine overrides.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from bireme import flags
from bireme.arrays.places import CUDAPlace, Place
from bireme.errors import UnknownName, UnsupportedError
from bireme.monitoring.admin import opened
from bireme.monitoring.counters import tally

from .group import Group
from .local import local_groups
from .mpi import MpiSession
from .nccl import nccl_group
from .session import Job, Session
from .world import Settings, World

__all__ = ["ENGINES", "choose_engine", "join", "mpi_rank_and_size"]

_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
)


def mpi_rank_and_size(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Rank and size as an MPI launcher gives them; None outside of one."""
    for rank, size in _MPI_VARIABLES:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    return None


def choose_engine(place: Place, environ: Mapping[str, str]) -> str:
    """The name of the engine for a program on `place`."""
    named = str(flags.get("collective_engine"))
    if named != "auto":
        if named not in ENGINES:
            raise UnknownName(f"no collective engine '{named}'", name=named, known=ENGINES)
        if isinstance(place, CUDAPlace) and named != "nccl":
            raise UnsupportedError(
                f"the {named} engine moves arrays of the host, and the program runs on {place}",
                hint="leave FLAGS_collective_engine alone, or train with CPUPlace()",
            )
        return named
    if isinstance(place, CUDAPlace):
        return "nccl"
    found = mpi_rank_and_size(environ)
    return "mpi" if found is not None and found[1] > 1 else "grpc"


def join(job: Job, engine: str) -> Session:
    """Join a job with an engine; a job of one rank needs none."""
    tally.enter("trainer", job.rank)
    opened()
    return _Local(job) if len(job.endpoints) == 1 else ENGINES[engine](job)


# -- the engines ---------------------------------------------------------------------------------
class _Local:
    """Ranks that are threads of this process; the job's endpoints identify it."""

    _lock = threading.Lock()
    _waiting: dict[tuple[Any, ...], dict[int, Group]] = {}

    def __init__(self, job: Job) -> None:
        self._job = job

    def group(self, name: str) -> Group:
        key = (self._job.endpoints, name)
        with self._lock:
            if key not in self._waiting:
                self._waiting[key] = dict(enumerate(local_groups(len(self._job.endpoints))))
            mine = self._waiting[key].pop(self._job.rank)
            if not self._waiting[key]:
                del self._waiting[key]
        return mine

    def messages(self, name: str) -> Group:
        return self.group(name)

    def fail(self, error: BaseException) -> None:
        """A thread that closes its group is noticed by the others."""

    def close(self) -> None:
        """Nothing to free beside the groups."""


def _mpi(job: Job) -> Session:
    return MpiSession(job.rank, len(job.endpoints), int(flags.get("rpc_deadline")) / 1000)


class _Nccl:
    """Ranks join through the grpc engine; NCCL moves the data."""

    def __init__(self, job: Job) -> None:
        self._device = job.place.id if isinstance(job.place, CUDAPlace) else 0
        self._world = _world(job)

    def group(self, name: str) -> Group:
        return nccl_group(self._world, name, self._device)

    def messages(self, name: str) -> Group:
        return self._world.group(name)

    def fail(self, error: BaseException) -> None:
        self._world.fail(error)

    def close(self) -> None:
        self._world.close()


def _world(job: Job) -> World:
    settings = Settings.from_flags(int(flags.get("rpc_deadline")) / 1000, job.terms)
    own = job.endpoints[job.rank]
    return World(job.rank, len(job.endpoints), job.endpoints[0], own, settings)


ENGINES: dict[str, Callable[[Job], Session]] = {
    "local": _Local,
    "grpc": _world,
    "mpi": _mpi,
    "nccl": _Nccl,
}
