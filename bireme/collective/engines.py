"""Which engine carries a job's collectives, and how its groups are made.

The place and the environment choose: a GPU takes nccl, a process under mpiexec mpi, any other
grpc; the flag `collective_engine` overrides. Every engine is one row of a table.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bireme import flags
from bireme.errors import ConfigError, UnknownName, UnsupportedError
from bireme.rpc.admin import opened
from bireme.rpc.tally import tally
from bireme.runtime.places import CPUPlace, CUDAPlace, Place

from .group import Group

if TYPE_CHECKING:
    from .world import World

__all__ = ["ENGINES", "Job", "Session", "choose_engine", "join", "mpi_rank_and_size"]

_HOST = CPUPlace()
_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
)


@dataclass(frozen=True)
class Job:
    """The ranks of one job: where each listens, and which of them this process is."""

    endpoints: tuple[str, ...]
    rank: int
    place: Place = _HOST
    terms: str = ""  # what else the ranks must agree on

    def __post_init__(self) -> None:
        if not 0 <= self.rank < len(self.endpoints):
            raise ConfigError(
                f"trainer id {self.rank} is not one of {len(self.endpoints)} trainers",
                where=f"trainers: {', '.join(self.endpoints)}",
                hint="trainer ids count from 0",
            )
        if len(set(self.endpoints)) != len(self.endpoints):
            raise ConfigError(f"an endpoint is named twice: {', '.join(self.endpoints)}")


class Session(Protocol):
    """A job that has been joined: opens groups of all its ranks."""

    def group(self, name: str) -> Group:
        """Every rank calls this with one name."""

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks the error that ends this one."""

    def close(self) -> None:
        """Leave the job."""


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
    """Ranks that are threads of this process; they meet by the job's endpoints."""

    _lock = threading.Lock()
    _waiting: dict[tuple[Any, ...], dict[int, Group]] = {}

    def __init__(self, job: Job) -> None:
        self._job = job

    def group(self, name: str) -> Group:
        from .local import local_groups

        key = (self._job.endpoints, name)
        with self._lock:
            if key not in self._waiting:
                self._waiting[key] = dict(enumerate(local_groups(len(self._job.endpoints))))
            mine = self._waiting[key].pop(self._job.rank)
            if not self._waiting[key]:
                del self._waiting[key]
        return mine

    def fail(self, error: BaseException) -> None:
        """A thread that leaves its group says enough."""

    def close(self) -> None:
        """Groups are closed by whoever has them."""


def _mpi(job: Job) -> Session:
    from .mpi import MpiSession

    return MpiSession(job.rank, len(job.endpoints), int(flags.get("rpc_deadline")) / 1000)


class _Nccl:
    """Ids travel by the grpc engine's world, data by NCCL."""

    def __init__(self, job: Job) -> None:
        self._device = job.place.id if isinstance(job.place, CUDAPlace) else 0
        self._world = _world(job)

    def group(self, name: str) -> Group:
        from .nccl import nccl_group

        return nccl_group(self._world, name, self._device)

    def fail(self, error: BaseException) -> None:
        self._world.fail(error)

    def close(self) -> None:
        self._world.close()


def _world(job: Job) -> "World":
    from .world import Settings, World

    settings = Settings(
        heartbeat=float(flags.get("heartbeat_seconds")),
        timeout=int(flags.get("rpc_deadline")) / 1000,
        payload=str(flags.get("collective_payload")),
        terms=job.terms,
    )
    own = job.endpoints[job.rank]
    return World(job.rank, len(job.endpoints), job.endpoints[0], own, settings)


ENGINES: dict[str, Callable[[Job], Session]] = {
    "local": _Local,
    "grpc": _world,
    "mpi": _mpi,
    "nccl": _Nccl,
}
