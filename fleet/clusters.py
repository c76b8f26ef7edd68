"""Ranks as other launchers and cluster managers give them, in the words of PaddleCloud.

`CLUSTERS` has one row per launcher. Knows environment variables only; opens no socket.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple, Protocol

from bireme.errors import ConfigError

__all__ = ["CLUSTERS", "FIRST_PORT", "Cluster", "Ranks", "ranks_in"]

Variables = Mapping[str, str]
FIRST_PORT = 6170  # of the processes of a host, where PADDLE_PORT names no other


class Ranks(NamedTuple):
    """This process among those that one launcher started.

    `rank` counts within the role, `size` counts trainers; `endpoints` of trainers and `servers` are
    empty where the launcher names no hosts. `role` is empty where the launcher knows no roles.
    """

    cluster: str
    rank: str
    size: str
    endpoints: tuple[str, ...] = ()
    role: str = ""  # TRAINER, PSERVER or SCHEDULER
    servers: tuple[str, ...] = ()


# -- where the ranks run -------------------------------------------------------------------------
def _torchrun(given: Variables, size: int) -> list[str]:
    """torchrun names the first host only: enough when there is no other."""
    alone = given.get("LOCAL_WORLD_SIZE") == given["WORLD_SIZE"]
    return [given["MASTER_ADDR"]] * size if alone else []


def _mpi(local_size: str) -> Callable[[Variables, int], list[str]]:
    """mpiexec names no hosts: enough when all ranks are on this one."""
    return lambda given, size: (
        ["127.0.0.1"] * size if given.get(local_size, "").strip() == str(size) else []
    )


def _slurm(given: Variables, size: int) -> list[str]:
    """The nodes of the step, each as often as it has tasks, if its tasks are in that order."""
    nodes = _expanded(given.get("SLURM_STEP_NODELIST") or given.get("SLURM_JOB_NODELIST", ""))
    text = given.get("SLURM_STEP_TASKS_PER_NODE") or given.get("SLURM_TASKS_PER_NODE", "")
    counts = [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(times or 1))
    ]
    if not counts and nodes and size % len(nodes) == 0:
        counts = [size // len(nodes)] * len(nodes)
    if sum(counts) != size or len(counts) != len(nodes):
        return []
    hosts = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    rank, node = given["SLURM_PROCID"], given.get("SLURM_NODEID", "")
    known = rank.isdecimal() and node.isdecimal() and int(rank) < size and int(node) < len(nodes)
    in_order = not known or hosts[int(rank)] == nodes[int(node)]  # not so if cyclic
    return hosts if in_order else []


def _expanded(nodes: str) -> list[str]:
    """`gpu[08-10,12],login` as the names it stands for; a name may have several brackets."""
    found = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes):
        *heads, tail = re.split(r"(\[[^\]]*\])", name)
        made = [""]
        for part in (*heads, tail):
            choices = _numbers(part[1:-1]) if part.startswith("[") else [part]
            made = [begin + end for begin in made for end in choices]
        found.append(made)
    return list(chain.from_iterable(found))


def _numbers(ranges: str) -> list[str]:
    """`08-10,12` as 08, 09, 10, 12."""
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return []
        found += [str(i).zfill(len(first)) for i in range(int(first), int(last or first) + 1)]
    return found


def _indexed_job(given: Variables, size: int) -> list[str]:
    """Pods are <job>-<index>.<service>; MASTER_ADDR names the first."""
    first = re.fullmatch(r"(.+)-0(\..+)?", given.get("MASTER_ADDR", "").strip())
    return [f"{first[1]}-{i}{first[2] or ''}" for i in range(size)] if first else []


# -- launchers that know servers and trainers ----------------------------------------------------
def _ps_lite(given: Variables) -> Ranks | None:
    """Servers register with a scheduler, so they have no known port; on one host they get the ports
    after the scheduler's.
    """
    word, workers, servers = (
        given.get(f"DMLC_{name}", "") for name in ("ROLE", "NUM_WORKER", "NUM_SERVER")
    )
    role = {"worker": "TRAINER", "server": "PSERVER", "scheduler": "SCHEDULER"}.get(word)
    if role is None or not (workers.isdecimal() and servers.isdecimal()):
        return None
    own, count = ("DMLC_SERVER_ID", servers) if word == "server" else ("DMLC_WORKER_ID", workers)
    rank = given.get(own) or ("0" if count == "1" else "")
    if not rank and role != "SCHEDULER":
        raise ConfigError(f"ps-lite's {word} {own} is not set", hint=f"0 to {int(count) - 1}")
    host, port = given.get("DMLC_PS_ROOT_URI", ""), given.get("DMLC_PS_ROOT_PORT", "")
    here = host in ("127.0.0.1", "localhost") and port.isdecimal()
    found = [f"{host}:{int(port) + 1 + i}" for i in range(int(servers))] if here else []
    return Ranks("ps-lite", rank, workers, (), role, tuple(found))


def _tf_job(given: Variables) -> Ranks | None:
    """TF_CONFIG of a TFJob: trainers are the chief and the workers."""
    try:
        config: Any = json.loads(given.get("TF_CONFIG") or "{}")
        hosts = {str(kind): list(map(str, all_)) for kind, all_ in config["cluster"].items()}
        kind, index = str(config["task"]["type"]), int(config["task"]["index"])
    except KeyError:
        return None
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("TF_CONFIG is not what a TFJob sets", where=given["TF_CONFIG"]) from None
    first = [*hosts.get("chief", []), *hosts.get("master", [])]
    trainers = tuple([*first, *hosts.get("worker", [])])
    role = {"ps": "PSERVER", "worker": "TRAINER"}.get(kind, "TRAINER")
    if kind not in hosts or kind == "evaluator":
        return None
    rank = index + (len(first) if kind == "worker" else 0)
    servers = tuple(hosts.get("ps", []))
    return Ranks("TFJob", str(rank), str(len(trainers)), () if servers else trainers, role, servers)


def _paddle_job(given: Variables) -> Ranks | None:
    """Kubeflow's PaddleJob: pods are <job>-master-<i>, the servers, and <job>-worker-<i>."""
    job, count = given.get("PADDLE_JOB_ID", ""), given.get("PADDLE_NNODES", "")
    pod = re.fullmatch(re.escape(job) + r"-(master|worker)-(\d+)", given.get("HOSTNAME", ""))
    if not (job and pod and count.isdecimal()):
        return None
    port = given.get("PADDLE_PORT") or given.get("PADDLE_MASTER", "").rpartition(":")[2]
    if not (given.get("PADDLE_SERVER_NUM") or given.get("PADDLE_TRAINER_NUM")):  # no masters
        return Ranks("PaddleJob", pod[2], count, _pods(job, "worker", int(count), port))
    trainers = given.get("PADDLE_TRAINERS_NUM") or ("1" if count == "2" else "")
    if not trainers.isdecimal() or int(trainers) >= int(count):
        raise ConfigError(
            f"Kubeflow does not say how many of the {count} pods are workers",
            hint="set PADDLE_TRAINERS_NUM to the number of Worker replicas, in every pod",
        )
    servers = _pods(job, "master", int(count) - int(trainers), port)
    role = "PSERVER" if pod[1] == "master" else "TRAINER"
    return Ranks("PaddleJob", pod[2], trainers, (), role, servers)


def _pods(job: str, kind: str, count: int, port: str) -> tuple[str, ...]:
    return tuple(f"{job}-{kind}-{i}:{port or FIRST_PORT}" for i in range(count))


# -- the table -----------------------------------------------------------------------------------
class Launcher(Protocol):
    """A row: what it says of this process, None if it did not start it."""

    @property
    def name(self) -> str: ...
    def read(self, given: Variables) -> Ranks | None: ...


class Cluster(NamedTuple):
    """A launcher of equal ranks: the variables of a rank, all of which it sets, and how to find the
    hosts.
    """

    name: str
    rank: str
    size: tuple[str, ...]  # the first that is set
    marks: tuple[str, ...]  # without these the variables are somebody else's
    hosts: Callable[[Variables, int], list[str]]
    port: str = "PADDLE_PORT"
    skip: int = 0  # ports that the launcher itself listens at

    def read(self, given: Variables) -> Ranks | None:
        size = next((given[name] for name in self.size if given.get(name)), "")
        if not size or not all(given.get(name) for name in (self.rank, *self.marks)):
            return None
        hosts = self.hosts(given, int(size)) if size.isdecimal() else []
        port = given.get(self.port, "")
        first = (int(port) if port.isdecimal() else FIRST_PORT) + self.skip
        return Ranks(self.name, given[self.rank], size, _endpoints(hosts, first))


class Roles(NamedTuple):
    """A launcher of servers and trainers."""

    name: str
    read: Callable[[Variables], Ranks | None]


CLUSTERS: tuple[Launcher, ...] = (  # a launcher that another one starts comes before it
    Roles("ps-lite", _ps_lite),
    Cluster("torchrun", "RANK", ("WORLD_SIZE",), ("MASTER_ADDR", "LOCAL_RANK"), _torchrun,
            "MASTER_PORT", 1),
    Cluster("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), (),
            _mpi("OMPI_COMM_WORLD_LOCAL_SIZE")),
    Cluster("MPICH", "PMI_RANK", ("PMI_SIZE",), (), _mpi("MPI_LOCALNRANKS")),
    Cluster("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
            ("SLURM_STEP_NODELIST",), _slurm),  # which a batch script outside srun lacks
    Roles("PaddleJob", _paddle_job),
    Roles("TFJob", _tf_job),
    Cluster("Kubernetes", "JOB_COMPLETION_INDEX", ("PADDLE_TRAINERS_NUM",), (), _indexed_job),
)  # fmt: skip


def ranks_in(environ: Variables) -> Ranks | None:
    """What the innermost launcher in `environ` says of this process; None outside of any.

    Raises:
        ConfigError: a launcher's variables are incomplete.
    """
    given = {name: value.strip() for name, value in environ.items()}
    found = [ranks for launcher in CLUSTERS if (ranks := launcher.read(given))]
    same = [ranks for ranks in found if ranks[1:3] == found[0][1:3]]
    return next((ranks for ranks in same if ranks.endpoints), found[0] if found else None)


def _endpoints(hosts: list[str], first: int) -> tuple[str, ...]:
    """One port after the other on each host."""
    seen: Counter[str] = Counter()
    found = []
    for host in hosts:
        found.append(f"{host}:{first + seen[host]}")
        seen[host] += 1
    return tuple(found)
