"""The processes of a local cluster, with their environments. Starts nothing."""

import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bireme.errors import ConfigError, as_builtin

from .. import lifeline
from ..role_maker import MEETING, SERVERS
from . import ports

__all__ = [
    "Job",
    "Seat",
    "arguments_of",
    "blas_threads",
    "command_of",
    "filled",
    "inherited",
    "misplaced",
    "seats",
]

MODES = ("pserver", "nccl2")
PROXIES = "http_proxy https_proxy all_proxy grpc_proxy".split()
BLAS = "OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS NUMEXPR_NUM_THREADS".split()
ROLE_VARIABLES = (
    "TRAINING_ROLE PADDLE_TRAINING_ROLE PADDLE_TRAINERS_NUM PADDLE_TRAINERS PADDLE_TRAINER_ID "
    "PADDLE_CURRENT_ENDPOINT PADDLE_TRAINER_ENDPOINTS POD_IP PADDLE_PORT PADDLE_PSERVER_ID"
).split() + [SERVERS, MEETING]
PLACEHOLDERS = ("{role}", "{index}", "{endpoint}", "{servers}", "{trainers}")


@dataclass(frozen=True, slots=True)
class Job:
    """The options of a job."""

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
    dashboard: bool = False
    trace: bool = False
    tensorboard: str = ""  # folder of event files
    cpu: bool = False
    restart: int = 0
    hosts: tuple[str, ...] = ()  # hosts of all nodes in rank order; empty for a single node
    module: bool = False  # `script` is the name of a module
    worker_log: str = ""
    append: bool = False  # append to existing logs
    quiet: bool = False  # without a table of processes, as Paddle's launchers
    echo_all: bool = False  # show the output of every trainer instead of the first only
    server_list: tuple[str, ...] = ()  # endpoints of the whole job, if given
    trainer_list: tuple[str, ...] = ()
    steps: int = 0  # of a trainer, where known: for the time left

    def check(self) -> "Job":
        """Validate the options; returns the job."""
        if not self.module and not os.path.isfile(self.script):
            raise ConfigError(
                f"there is no script {self.script}", where=f"looked from {os.getcwd()}"
            )
        if self.trainers < 1 or (self.mode == "pserver" and self.servers < 1):
            raise ConfigError(
                "a cluster needs at least one server and one trainer",
                where=f"{self.servers} servers, {self.trainers} trainers",
                hint="trainers alone make an all-reduce job: --mode nccl2",
            )
        if self.gpus and len(self.gpus) < self.trainers:
            raise ConfigError(
                f"{len(self.gpus)} devices for {self.trainers} trainers",
                where=f"--gpus {','.join(self.gpus)}",
                hint="give each trainer a device of its own, or start fewer trainers",
            )
        unknown = [a for a in self.arguments if re.fullmatch(r"\{[a-z_]+\}", a)]
        unknown = [a for a in unknown if a not in PLACEHOLDERS]
        if unknown:
            raise ConfigError(
                f"there is no placeholder {unknown[0]}",
                where=f"arguments of {self.script}",
                hint=f"those that are filled in for each process: {', '.join(PLACEHOLDERS)}",
            )
        if self.restart < 0:
            raise ConfigError(f"--restart {self.restart}", hint="give 0, or a number of restarts")
        wants = "--dashboard" if self.dashboard else "--tensorboard" if self.tensorboard else ""
        if wants and not self.admin:
            raise ConfigError(f"{wants} needs the admin ports", hint="leave --no-admin away")
        self._check_hosts()
        return self

    def _check_hosts(self) -> None:
        if self.hosts and self.host not in self.hosts:
            raise as_builtin(ValueError)(
                f"this node, {self.host}, is not in the list of nodes",
                where=f"nodes: {', '.join(self.hosts)}",
                hint="each node names itself as the list does",
            )
        if len(set(self.hosts)) < len(self.hosts):
            raise ConfigError(f"a node is listed twice: {', '.join(self.hosts)}")
        if (
            len(self.hosts) > 1
            and not self.trainer_list
            and (self.server_count or not self.start_port)
        ):
            raise ConfigError(
                "several nodes need one first port for all, and no servers",
                hint="give the same --start-port on every node; for servers on other hosts, start "
                "each process by itself with the variables of its role",
            )

    @property
    def spans_hosts(self) -> bool:
        """Whether other nodes take part, each with its own launcher."""
        every = [*self.server_list, *self.trainer_list]
        return len({self.host, *self.hosts, *(e.rpartition(":")[0] for e in every)}) > 1

    @property
    def first_rank(self) -> int:
        """The rank of this node's first trainer."""
        return self.hosts.index(self.host) * self.trainers if self.hosts else 0

    @property
    def server_count(self) -> int:
        return self.servers if self.mode == "pserver" else 0

    @property
    def size(self) -> int:
        """The number of processes on this node."""
        return self.server_count + self.trainers

    @property
    def own_endpoints(self) -> list[str]:
        """The given endpoints of this node, servers first."""
        every = [*self.server_list, *self.trainer_list]
        return [e for e in every if e.rpartition(":")[0] == self.host]

    @property
    def port_count(self) -> int:
        """The number of ports on this node: one per process, and one more for the rendezvous of
        trainers.
        """
        return self.size + (not self.server_count)


@dataclass(frozen=True, slots=True)
class Seat:
    """A process to start: its role, log name and environment variables."""

    role: str
    index: int
    log: str
    variables: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def seats(job: Job, endpoints: Sequence[str]) -> tuple[Seat, ...]:
    """Servers first, then trainers, each with the environment of its role.

    `endpoints` are those of this node: servers, trainers, and the trainers' rendezvous if it is not
    the endpoint of the first trainer.
    """
    servers, own = endpoints[: job.server_count], endpoints[job.server_count : job.size]
    trainers = job.trainer_list or [f"{h}:{_port(e)}" for h in job.hosts for e in own] or own
    shared = {
        "PADDLE_TRAINERS_NUM": str(len(trainers)),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(trainers),
    }
    if servers or job.server_list:
        shared[SERVERS] = ",".join(job.server_list or servers)
    meeting = [_port(endpoint) for endpoint in endpoints[job.size :]]
    if meeting:
        shared[MEETING] = f"{trainers[0].rpartition(':')[0]}:{meeting[0]}"
    found = [
        Seat("server", i, f"serverlog.{i}", {**shared, **_place(e), **_server(i)})
        for i, e in enumerate(job.server_list or servers)
        if e in servers
    ]
    name = job.worker_log or ("trainerlog" if servers else "workerlog")
    for i, e in enumerate(own):
        rank = trainers.index(e) if job.trainer_list else job.first_rank + i
        place = _place(e, meeting if rank == 0 else [])
        variables = {**shared, **place, **_trainer(rank), **_device(job, i)}
        found.append(Seat("trainer", rank, f"{name}.{i}", variables))
    return tuple(found)


def command_of(job: Job) -> tuple[str, ...]:
    """What makes two jobs the same: script, arguments, mode and size."""
    return (job.mode, str(job.server_count), str(job.trainers), job.script, *job.arguments)


def misplaced(script: str, arguments: Iterable[str], options: Container[str]) -> list[str]:
    """Those of a script's arguments that are options of bireme, and nothing that the script itself
    speaks of.
    """
    with open(script, errors="replace") as file:
        text = file.read()
    names = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    return [name for name in names if name in options and name.lstrip("-") not in text]


def arguments_of(job: Job, seat: Seat) -> tuple[str, ...]:
    """The script's arguments for one process, with placeholders filled in."""
    return filled(job.arguments, seat.variables, seat.index)


def filled(arguments: Sequence[str], variables: Mapping[str, str], index: int) -> tuple[str, ...]:
    """Arguments with placeholders filled in from the variables of a role.

    {role} is pserver or trainer, {index} the number within the role, {endpoint} the process's own;
    {servers} lists the servers' endpoints, and {trainers} is the argument of `transpile`: their
    number, or with nccl2 their endpoints.
    """
    servers, peers = (variables.get(name, "") for name in (SERVERS, "PADDLE_TRAINER_ENDPOINTS"))
    values = (
        "pserver" if variables["TRAINING_ROLE"] == "PSERVER" else "trainer",
        str(index),
        variables.get("PADDLE_CURRENT_ENDPOINT", ""),
        servers,
        variables["PADDLE_TRAINERS_NUM"] if servers else peers,
    )
    found = []
    for argument in arguments:
        for word, value in zip(PLACEHOLDERS, values, strict=True):
            argument = argument.replace(word, value)
        found.append(argument)
    return tuple(found)


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]


def _place(endpoint: str, more: Sequence[str] = ()) -> dict[str, str]:
    host, _, port = endpoint.rpartition(":")
    return {
        "PADDLE_CURRENT_ENDPOINT": endpoint,
        "POD_IP": host,
        "PADDLE_PORT": port,
        ports.VARIABLE: ",".join([port, *more]),
    }


def _server(index: int) -> dict[str, str]:
    return {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": str(index)}


def _trainer(index: int) -> dict[str, str]:
    return {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)}


def _device(job: Job, index: int) -> dict[str, str]:
    return {"FLAGS_selected_gpus": job.gpus[index]} if job.gpus else {}


def blas_threads(processes: int) -> int:
    """An equal share of the cores per process, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def inherited(environ: Mapping[str, str], processes: int, admin: bool = True) -> dict[str, str]:
    """The environment of every child: without proxies and roles of the launcher, with its share of
    the cores and an ephemeral admin port.
    """
    dropped = {*PROXIES, *(p.upper() for p in PROXIES), *ROLE_VARIABLES}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    share = str(blas_threads(processes))
    ours = {lifeline.VARIABLE: str(os.getpid()), "FLAGS_admin_port": "0" if admin else "-1"}
    return {**dict.fromkeys(BLAS, share), **kept, **ours}
