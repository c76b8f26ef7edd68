"""Barriers and exchanges of small values between the processes of a job, beside training.

The processes meet in `bireme.distributed` when the first of them asks for something. Knows roles;
knows no program.
"""

import json
import os
import socket
from typing import Any

import numpy as np

from bireme import distributed as dist
from bireme.errors import ConfigError, InvalidArgument, UnsupportedError, as_builtin
from bireme.job_token import TOKEN, job_token, new_token

from .. import metrics
from ..role_maker import MEETING, Role, check_endpoint

__all__ = ["Gathering", "symmetric_role"]

OPERATIONS: dict[str, Any] = {"sum": np.sum, "min": np.min, "max": np.max}
WORLDS = ("worker", "server", "all")


class Gathering:
    """The processes of one job.

    Workers meet where training has connected them already, else at the first call; servers take
    part after `meet_all`, which every process of the job must call.

    Args:
        role: this process.
        place: host:port where all meet; by default PADDLE_GLOO_HTTP_ENDPOINT, else the endpoint
            of worker 0 in a job with servers.
        timeout: the longest wait for the others, in seconds.
    """

    def __init__(self, role: Role, place: str = "", timeout: float = 1800.0) -> None:
        self._role = role
        self._place = place
        self._timeout = timeout
        self._groups: dict[str, Any] = {}

    def barrier(self, world: str = "worker") -> None:
        """Wait until all processes of `world` (worker, server or all) have called this."""
        self._stacked(np.zeros(1, np.int64), world)

    def all_reduce(self, value: Any, mode: str = "sum", world: str = "worker") -> Any:
        """The sum, min or max over `world`, elementwise; a number gives a number."""
        if mode not in OPERATIONS:
            raise InvalidArgument(f"all_reduce mode {mode!r}", hint=f"one of {list(OPERATIONS)}")
        found = OPERATIONS[mode](self._stacked(np.asarray(value), world), axis=0)
        return found if isinstance(value, np.ndarray | list | tuple) else found.item()

    def all_gather(self, value: Any, world: str = "worker") -> list[Any]:
        """`value` of every process of `world`: arrays of equal shape, or what JSON can write."""
        if isinstance(value, np.ndarray):
            return list(self._stacked(value, world))
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = self._stacked(np.array([data.size]), world)[:, 0]
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: data.size] = data
        rows = self._stacked(padded, world)
        return [json.loads(row[:n].tobytes()) for row, n in zip(rows, sizes, strict=True)]

    def _stacked(self, array: Any, world: str) -> Any:
        """The arrays of all processes of `world`, in their order, as one."""
        if world not in WORLDS:
            raise InvalidArgument(f"comm_world {world!r}", hint=f"one of {', '.join(WORLDS)}")
        if world == "worker" and self._role.trainers == 1:
            return array[None]
        if world not in self._groups:
            if world != "worker" or self._role.is_server:
                raise UnsupportedError(
                    f"servers do not meet in this job, so {world!r} has nobody to wait for",
                    hint="use GeneralRoleMaker, which lets workers and servers meet",
                )
            if metrics.connected():  # by the servers, or by the rings of an all-reduce program
                return metrics.gather({"": array})[""]
            self._meet(self._role.trainers, self._role.trainer_id)
            self._groups[world] = None
        group = self._groups[world]
        rows = [np.empty_like(array) for _ in range(dist.get_world_size(group))]
        dist.all_gather(rows, array, group)
        return np.stack(rows)

    def meet_all(self) -> None:
        """Meet workers and servers, numbered in this order."""
        trainers, servers = self._role.trainers, len(self._role.servers)
        number = (
            trainers + self._role.server_index if self._role.is_server else (self._role.trainer_id)
        )
        self._meet(trainers + servers, number)
        self._groups = {
            "all": None,
            "worker": dist.new_group(list(range(trainers))),
            "server": dist.new_group(list(range(trainers, trainers + servers))),
        }

    def adopt(self, groups: dict[str, Any]) -> None:
        """Use groups that exist already, by world."""
        self._groups = groups

    def _meet(self, size: int, rank: int) -> None:
        if dist.is_initialized():  # by the user
            if dist.get_world_size() != size:
                raise ConfigError(
                    f"bireme.distributed has {dist.get_world_size()} processes, the job {size}",
                    hint="let init_process_group span the same processes, or leave it to Fleet",
                )
            return
        place = self._meeting_place()
        dist.init_process_group("gloo", f"tcp://{place}", self._timeout, size, rank)

    def _meeting_place(self) -> str:
        place = self._place or os.environ.get(MEETING, "")
        if not place and self._role.servers and self._role.trainer_endpoints:
            place = self._role.trainer_endpoints[0]
        if not place:
            raise ConfigError(
                "the workers do not know where to meet",
                where=f"not set: {MEETING}",
                hint=f"{MEETING}=HOST:PORT, a free port of worker 0's host, on every worker; the "
                "launchers set it",
            )
        check_endpoint(place, MEETING)
        return place


# -- under mpiexec -------------------------------------------------------------------------------
def symmetric_role() -> tuple[Role, Gathering]:
    """Even ranks of MPI's world are servers, odd ones workers; each server takes a free port."""
    try:
        dist.init_process_group("mpi")
    except UnsupportedError as error:
        raise as_builtin(ModuleNotFoundError, UnsupportedError)(
            f"MPISymetricRoleMaker: {error.message}", hint="pip install 'bireme[mpi]'"
        ) from None
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % 2:
        raise ConfigError(
            f"{size} processes cannot be half servers and half workers",
            hint="start an even number: mpiexec -n 4 python train.py",
        )
    own = _free_endpoint() if rank % 2 == 0 else ""
    kind, index = ("trainer", rank // 2) if rank % 2 else ("server", 0)
    gathering = Gathering(Role(kind, index, size // 2))
    gathering.adopt({"all": None})
    # The first process's token for all: mpiexec has let nobody else into this world.
    os.environ[TOKEN] = gathering.all_gather(job_token() or new_token(), "all")[0]
    servers = tuple(gathering.all_gather(own, "all")[::2])
    worker, server = (dist.new_group(list(range(i, size, 2))) for i in (1, 0))
    role = Role(kind, index, size // 2, servers, (), own)
    gathering = Gathering(role)
    gathering.adopt({"all": None, "worker": worker, "server": server})
    return role, gathering


def _free_endpoint() -> str:
    """An endpoint of this host that nobody listens at now."""
    host = _own_address()
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def _own_address() -> str:
    """The address under which other hosts reach this one; loopback when it has no other."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
