"""What a local cluster consists of: one seat per process, with its role's environment.

Decides; starts nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bireme.errors import ConfigError

from . import ports, script
from .role_maker import SERVERS

__all__ = ["Job", "Seat", "blas_threads", "inherited", "seats"]

MODES = ("pserver", "nccl2")
PROXIES = "http_proxy https_proxy all_proxy grpc_proxy".split()
BLAS = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMEXPR_NUM_THREADS".split()
ROLE_VARIABLES = (
    "TRAINING_ROLE PADDLE_TRAINING_ROLE PADDLE_TRAINERS_NUM PADDLE_TRAINERS PADDLE_TRAINER_ID "
    "PADDLE_CURRENT_ENDPOINT PADDLE_TRAINER_ENDPOINTS POD_IP PADDLE_PORT PADDLE_PSERVER_ID"
).split() + [SERVERS]


@dataclass(frozen=True, slots=True)
class Job:
    """What the user asked for."""

    script: str
    arguments: tuple[str, ...] = ()
    servers: int = 2
    trainers: int = 2
    mode: str = "pserver"
    host: str = "127.0.0.1"
    start_port: int = 0
    log_dir: str = "log"
    grace: float = 10.0
    gpus: tuple[str, ...] = ()
    admin: bool = True

    def check(self) -> "Job":
        """This job, or a ConfigError that says why it cannot start."""
        if not os.path.isfile(self.script):
            raise ConfigError(
                f"there is no script {self.script}", where=f"looked from {os.getcwd()}"
            )
        if self.trainers < 1 or (self.mode == "pserver" and self.servers < 1):
            raise ConfigError(
                f"{self.servers} servers and {self.trainers} trainers make no cluster",
                hint="pserver mode needs at least one of each; nccl2 mode needs trainers only",
            )
        if self.gpus and len(self.gpus) < self.trainers:
            raise ConfigError(
                f"{len(self.gpus)} devices for {self.trainers} trainers",
                where=f"--gpus {','.join(self.gpus)}",
                hint="give each trainer a device of its own, or start fewer trainers",
            )
        return self

    @property
    def server_count(self) -> int:
        return self.servers if self.mode == "pserver" else 0

    @property
    def size(self) -> int:
        return self.server_count + self.trainers


@dataclass(frozen=True, slots=True)
class Seat:
    """One process to be: its part in the cluster, its log's name, and the variables it gets."""

    role: str
    index: int
    log: str
    variables: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def seats(job: Job, endpoints: Sequence[str]) -> tuple[Seat, ...]:
    """Servers first, then trainers, each with the environment of its role."""
    servers, trainers = endpoints[: job.server_count], endpoints[job.server_count :]
    shared = {
        "PADDLE_TRAINERS_NUM": str(job.trainers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(trainers),
    }
    if servers:
        shared[SERVERS] = ",".join(servers)
    found = [
        Seat("server", i, f"serverlog.{i}", {**shared, **_place(e), **_server(i)})
        for i, e in enumerate(servers)
    ]
    name = "trainerlog" if servers else "workerlog"
    found += [
        Seat("trainer", i, f"{name}.{i}", {**shared, **_place(e), **_trainer(i), **_device(job, i)})
        for i, e in enumerate(trainers)
    ]
    return tuple(found)


def _place(endpoint: str) -> dict[str, str]:
    host, _, port = endpoint.rpartition(":")
    return {
        "PADDLE_CURRENT_ENDPOINT": endpoint,
        "POD_IP": host,
        "PADDLE_PORT": port,
        ports.VARIABLE: port,
    }


def _server(index: int) -> dict[str, str]:
    return {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": str(index)}


def _trainer(index: int) -> dict[str, str]:
    return {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)}


def _device(job: Job, index: int) -> dict[str, str]:
    return {"FLAGS_selected_gpus": job.gpus[index]} if job.gpus else {}


def blas_threads(processes: int) -> int:
    """An equal share of the cores for each process, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def inherited(environ: Mapping[str, str], processes: int, admin: bool = True) -> dict[str, str]:
    """What every child gets from us: no proxy, no role of our own, its share of the cores, and
    an admin port that the kernel chooses.
    """
    dropped = {*PROXIES, *(p.upper() for p in PROXIES), *ROLE_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    share = str(blas_threads(processes))
    ours = {script.LAUNCHER: str(os.getpid()), "FLAGS_admin_port": "0" if admin else "-1"}
    return {**dict.fromkeys(BLAS, share), **kept, **ours}
