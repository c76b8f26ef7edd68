"""Ranks as other launchers and cluster managers give them, in the words of PaddleCloud.

`CLUSTERS` has one row per launcher. Knows environment variables only; opens no socket.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from typing import NamedTuple

__all__ = ["CLUSTERS", "FIRST_PORT", "Cluster", "Ranks", "ranks_in"]

Variables = Mapping[str, str]
FIRST_PORT = 6170  # of the processes of a host, where PADDLE_PORT names no other


class Ranks(NamedTuple):
    """This process among those that one launcher started; no endpoints where it names no hosts."""

    cluster: str
    rank: str
    size: str
    endpoints: tuple[str, ...]


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


# -- the table -----------------------------------------------------------------------------------
class Cluster(NamedTuple):
    """A launcher: the variables of a rank, all of which it sets, and how to find the hosts."""

    name: str
    rank: str
    size: tuple[str, ...]  # the first that is set
    marks: tuple[str, ...]  # without these the variables are somebody else's
    hosts: Callable[[Variables, int], list[str]]
    port: str = "PADDLE_PORT"
    skip: int = 0  # ports that the launcher itself listens at


CLUSTERS = (  # a launcher that another one starts comes before it
    Cluster("torchrun", "RANK", ("WORLD_SIZE",), ("MASTER_ADDR", "LOCAL_RANK"), _torchrun,
            "MASTER_PORT", 1),
    Cluster("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), (),
            _mpi("OMPI_COMM_WORLD_LOCAL_SIZE")),
    Cluster("MPICH", "PMI_RANK", ("PMI_SIZE",), (), _mpi("MPI_LOCALNRANKS")),
    Cluster("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
            ("SLURM_STEP_NODELIST",), _slurm),  # which a batch script outside srun lacks
    Cluster("Kubernetes", "JOB_COMPLETION_INDEX", ("PADDLE_TRAINERS_NUM",), (), _indexed_job),
)  # fmt: skip


def ranks_in(environ: Variables) -> Ranks | None:
    """What the innermost launcher in `environ` says of this process; None outside of any."""
    found = [ranks for cluster in CLUSTERS if (ranks := _read(cluster, environ))]
    same = [ranks for ranks in found if ranks[1:3] == found[0][1:3]]
    return next((ranks for ranks in same if ranks.endpoints), found[0] if found else None)


def _read(cluster: Cluster, environ: Variables) -> Ranks | None:
    given = {name: value.strip() for name, value in environ.items()}
    size = next((given[name] for name in cluster.size if given.get(name)), "")
    if not size or not all(given.get(name) for name in (cluster.rank, *cluster.marks)):
        return None
    hosts = cluster.hosts(given, int(size)) if size.isdecimal() else []
    port = given.get(cluster.port, "")
    first = (int(port) if port.isdecimal() else FIRST_PORT) + cluster.skip
    return Ranks(cluster.name, given[cluster.rank], size, _endpoints(hosts, first))


def _endpoints(hosts: list[str], first: int) -> tuple[str, ...]:
    """One port after the other on each host."""
    seen: Counter[str] = Counter()
    found = []
    for host in hosts:
        found.append(f"{host}:{first + seen[host]}")
        seen[host] += 1
    return tuple(found)
