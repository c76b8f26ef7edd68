"""Fluid's role makers: each finds the `Role` of this process in its own way.

`paddle.fluid.incubate.fleet.base.role_maker` is this module. How processes exchange values beside
training stands in `gathering`.
"""

import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from bireme.errors import BiremeError, ConfigError, as_builtin

from .. import role_maker
from .gathering import Gathering, symmetric_role

__all__ = [
    "GeneralRoleMaker",
    "MPISymetricRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]


class Role(IntEnum):
    """The two kinds of processes, numbered as Fluid does."""

    WORKER = 1
    SERVER = 2


class RoleMakerBase:
    """Finds out once which role this process plays, and answers questions about it.

    A subclass says how in `_find`. A question asked before `generate_role` generates the role.
    """

    def __init__(self) -> None:
        self._found: role_maker.Role | None = None
        self._gathering: Gathering | None = None

    def _find(self) -> role_maker.Role:
        raise ConfigError(
            f"{type(self).__name__} does not say which role this process plays",
            hint="use PaddleCloudRoleMaker or UserDefinedRoleMaker",
        )

    def generate_role(self) -> None:
        """Find the role; a second call changes nothing.

        Raises:
            ConfigError: the environment or the arguments describe no role.
        """
        if self._found is None:
            self._found = self._find()

    @property
    def role(self) -> role_maker.Role:
        """The role as the rest of bireme knows it."""
        self.generate_role()
        assert self._found is not None
        return self._found

    @property
    def gathering(self) -> Gathering:
        """The processes of the job, for barriers and exchanges beside training."""
        if self._gathering is None:
            self._gathering = Gathering(self.role)
        return self._gathering

    # -- who am I --------------------------------------------------------------------------
    def is_worker(self) -> bool:
        return not self.role.is_server

    def is_server(self) -> bool:
        return self.role.is_server

    def is_first_worker(self) -> bool:
        return self.role.is_first

    def worker_index(self) -> int:
        return self.role.trainer_id

    def server_index(self) -> int:
        return self.role.server_index

    # -- who else is there -----------------------------------------------------------------
    def worker_num(self) -> int:
        return self.role.trainers

    def server_num(self) -> int:
        return len(self.role.servers)

    def role_id(self) -> int:
        """The index among the processes of the same role."""
        return self.server_index() if self.is_server() else self.worker_index()

    def node_num(self) -> int:
        """How many hosts the workers run on."""
        return max(1, len({e.rpartition(":")[0] for e in self.role.trainer_endpoints}))

    def get_trainer_endpoints(self) -> list[str]:
        return list(self.role.trainer_endpoints)

    def get_pserver_endpoints(self) -> list[str]:
        return list(self.role.servers)

    def get_current_endpoint(self) -> str:
        return self.role.endpoint

    def to_string(self) -> str:
        kind = Role.SERVER if self.is_server() else Role.WORKER
        return (
            f"role: {int(kind)}, current_id: {self.role_id()}, "
            f"worker_endpoints: {self.get_trainer_endpoints()}, "
            f"server_endpoints: {self.get_pserver_endpoints()}"
        )

    # -- beside training -------------------------------------------------------------------
    def barrier_worker(self) -> None:
        """Wait until all workers are here."""
        self.gathering.barrier("worker")

    def barrier_all(self) -> None:
        """Wait until all workers and servers are here."""
        self.gathering.barrier("all")

    def all_gather(self, input: Any) -> list[Any]:
        """`input` of every worker, in their order."""
        return self.gathering.all_gather(input, "worker")

    def all_reduce_worker(self, input: Any, output: Any, mode: str = "sum") -> None:
        """Put the sum (min, max) over all workers of `input` into the array `output`."""
        output[...] = self.gathering.all_reduce(input, mode, "worker")


class PaddleCloudRoleMaker(RoleMakerBase):
    """Reads the variables that PaddleCloud and the launchers set.

    Args:
        is_collective: all processes are workers that reduce among themselves.
    """

    def __init__(self, is_collective: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self._is_collective = is_collective

    def _find(self) -> role_maker.Role:
        if self._is_collective:
            return role_maker.Role.read_collective(os.environ)
        found = role_maker.Role.read(os.environ)
        if found.kind == "local":
            raise ConfigError(
                "PaddleCloudRoleMaker finds no role in the environment",
                where="not set: TRAINING_ROLE, PADDLE_TRAINING_ROLE",
                hint="start the script with `bireme launch` or paddle.distributed.launch_ps, or set"
                " TRAINING_ROLE, PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM and"
                " PADDLE_TRAINER_ID by hand",
            )
        return found


class UserDefinedRoleMaker(RoleMakerBase):
    """The role as arguments, for jobs with servers.

    Args:
        current_id: the index among the workers, or among the servers.
        role: Role.WORKER or Role.SERVER.
        worker_num: how many workers the job has, at least 1.
        server_endpoints: host:port of every server.

    Raises:
        TypeError, ValueError: an argument of the wrong type or value (ConfigErrors as well).
    """

    def __init__(
        self,
        current_id: int = 0,
        role: int = Role.WORKER,
        worker_num: int = 0,
        server_endpoints: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        servers = _endpoint_list(server_endpoints, name, "server_endpoints")
        if role not in (Role.WORKER, Role.SERVER):
            raise _refusal(TypeError, f"{role!r} is not a role", name, "Role.WORKER or Role.SERVER")
        _whole(current_id, name, "current_id", least=0)
        _whole(worker_num, name, "worker_num", least=1)
        count = len(servers) if role == Role.SERVER else worker_num
        _inside(current_id, count, name)
        peers = _endpoint_list(kwargs.get("worker_endpoints", ()), name, "worker_endpoints", 0)
        server = role == Role.SERVER
        self._given = role_maker.Role(
            "server" if server else "trainer",
            0 if server else current_id,
            worker_num,
            servers,
            peers,
            servers[current_id] if server else (peers[current_id] if peers else ""),
        )

    def _find(self) -> role_maker.Role:
        return self._given


class UserDefinedCollectiveRoleMaker(RoleMakerBase):
    """The role as arguments, for jobs without servers.

    Args:
        current_id: the index of this worker.
        worker_endpoints: host:port of every worker, the same list on all of them.
    """

    def __init__(self, current_id: int = 0, worker_endpoints: Sequence[str] | None = None) -> None:
        super().__init__()
        name = type(self).__name__
        peers = _endpoint_list(worker_endpoints, name, "worker_endpoints")
        _whole(current_id, name, "current_id", least=0)
        _inside(current_id, len(peers), name)
        own = peers[current_id]
        self._given = role_maker.Role("trainer", current_id, len(peers), (), peers, own)

    def _find(self) -> role_maker.Role:
        return self._given


class GeneralRoleMaker(RoleMakerBase):
    """Reads the environment like PaddleCloudRoleMaker, and meets all other processes at once.

    Workers and servers meet at PADDLE_GLOO_HTTP_ENDPOINT (or `http_ip_port`), by default at the
    endpoint of worker 0, which a job with servers does not use otherwise.

    Args:
        path: accepted for scripts that met through HDFS; so are hdfs_name and hdfs_ugi.
        init_timeout_seconds: the longest wait for the others.
        http_ip_port: where the processes meet.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._timeout = float(kwargs.get("init_timeout_seconds", 3600))
        self._place = str(kwargs.get("http_ip_port", ""))

    def _find(self) -> role_maker.Role:
        found = role_maker.Role.read(os.environ)
        if not found.servers or not found.trainer_endpoints:
            raise ConfigError(
                "GeneralRoleMaker needs the endpoints of all servers and workers",
                hint="set TRAINING_ROLE, PADDLE_PSERVERS_IP_PORT_LIST and PADDLE_TRAINER_ENDPOINTS",
            )
        self._gathering = Gathering(found, self._place, self._timeout)
        if os.environ.get("PADDLE_IS_BARRIER_ALL_ROLE", "1") == "1":
            self._gathering.meet_all()
        return found

    def get_local_endpoint(self) -> str:
        return self.role.endpoint


class MPISymetricRoleMaker(RoleMakerBase):
    """Under mpiexec: even ranks are servers, odd ranks workers.

    Raises:
        ConfigError: an odd number of processes.
        ModuleNotFoundError: mpi4py is missing (an UnsupportedError as well).
    """

    def _find(self) -> role_maker.Role:
        found, self._gathering = symmetric_role()
        return found

    def get_local_ip(self) -> str:
        return self.role.endpoint.rpartition(":")[0]


def _refusal(kind: type[Exception], what: str, where: str, hint: str) -> BiremeError:
    return as_builtin(kind)(what, where=where, hint=f"give {hint}")


def _whole(value: Any, where: str, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(TypeError, f"{name} = {value!r}", where, f"an integer >= {least}")
    if value < least:
        raise _refusal(ValueError, f"{name} = {value}", where, f"an integer >= {least}")


def _inside(current_id: int, count: int, where: str) -> None:
    if current_id >= count:
        raise _refusal(
            ValueError, f"current_id = {current_id} of {count}", where, f"0 to {count - 1}"
        )


def _endpoint_list(given: Any, where: str, name: str, least: int = 1) -> tuple[str, ...]:
    hint = "a list of host:port, each different"
    if not isinstance(given, list | tuple) or not all(isinstance(e, str) for e in given):
        raise _refusal(TypeError, f"{name} = {given!r}", where, hint)
    if len(given) < least or len(set(given)) < len(given):
        raise _refusal(ValueError, f"{name} = {given!r}", where, hint)
    for endpoint in given:
        role_maker.check_endpoint(endpoint.strip(), name)
    return tuple(endpoint.strip() for endpoint in given)
