"""Validates the processes passed to `transpile`: endpoints, trainer ids, groups of ranks."""

from collections.abc import Sequence

from bireme.errors import BiremeError, ConfigError, as_builtin

from .config import DistributeTranspilerConfig
from .plan import Cluster
from .to_collective import Ranks

WHERE = "DistributeTranspiler.transpile"


def endpoints_of(given: str | Sequence[str], what: str) -> tuple[str, ...]:
    """A list of `host:port`, from a list or a comma-separated string.

    Raises:
        ConfigError: blank, repeated or malformed endpoints.
    """
    parts = given.split(",") if isinstance(given, str) else list(given)
    found = tuple(str(part).strip() for part in parts)
    for endpoint in found:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"{endpoint!r} is not an endpoint",
                where=f"{WHERE}({what}={given!r})",
                hint="write host:port, several with commas between them",
            )
    twice = sorted({e for e in found if found.count(e) > 1}) if len(set(found)) < len(found) else []
    if twice:
        raise ConfigError(
            f"duplicate endpoint {', '.join(twice)}",
            where=f"{WHERE}({what}={given!r})",
            hint="every process needs an endpoint of its own",
        )
    return found


def servers_and_trainers(
    trainer_id: int, pservers: str | Sequence[str], trainers: object, current: str
) -> Cluster:
    """The processes of a job with parameter servers.

    Raises:
        ConfigError: naming the argument that is wrong.
    """
    if isinstance(trainers, bool) or not isinstance(trainers, int) or trainers < 1:
        raise ConfigError(
            f"{trainers!r} is not a number of trainers",
            where=f"{WHERE}(trainers=)",
            hint="give an integer >= 1; a list of endpoints belongs to mode='nccl2'",
        )
    if (
        isinstance(trainer_id, bool)
        or not isinstance(trainer_id, int)
        or not 0 <= trainer_id < trainers
    ):
        raise ConfigError(
            f"there is no trainer {trainer_id!r} among {trainers}",
            where=f"{WHERE}(trainer_id=)",
            hint=f"use 0 to {trainers - 1}, and 0 on a server",
        )
    if not pservers:
        raise ConfigError(
            "this job has no servers",
            where=f"{WHERE}(pservers={pservers!r})",
            hint="list their endpoints; in a job of trainers alone (--mode nccl2, mpiexec, "
            "torchrun) set config.mode = 'nccl2'",
        )
    return Cluster(trainer_id, trainers, endpoints_of(pservers, "pservers"), current)


def ranks_of(
    trainer_id: int, trainers: object, current: str, config: DistributeTranspilerConfig
) -> Ranks:
    """The processes of a job without servers.

    Raises:
        ValueError, AssertionError: as the original does (and a ConfigError as well).
    """
    flat = config.mode == "nccl2"
    if not isinstance(trainers, str) and (flat or not isinstance(trainers, list | tuple)):
        raise _refuse(
            AssertionError,
            f"{trainers!r} is no list of trainers",
            "trainers=",
            "give their endpoints as text with commas between them",
        )
    endpoints = endpoints_of(trainers, "trainers")
    many = flat or config.collective_mode == "single_process_multi_thread"
    if not many and len(endpoints) < 2:
        raise _refuse(
            ValueError,
            "one trainer alone has nobody to reduce with",
            "trainers=",
            "name two endpoints or more, or train without transpiling",
        )
    _check_seat(trainer_id, current, endpoints)
    return Ranks(trainer_id, endpoints, config.nccl_comm_num)


def _check_seat(trainer_id: int, current: str, endpoints: tuple[str, ...]) -> None:
    if isinstance(trainer_id, bool) or not isinstance(trainer_id, int) or trainer_id < 0:
        raise _refuse(ValueError, f"{trainer_id!r} is no trainer", "trainer_id=", "count from 0")
    if current not in endpoints:
        raise _refuse(
            ValueError,
            f"{current!r} is not one of the trainers",
            "current_endpoint=",
            f"the trainers are {', '.join(endpoints)}",
        )
    if endpoints.index(current) != trainer_id:
        raise _refuse(
            ValueError,
            f"trainer {trainer_id} is not at {current!r}",
            "current_endpoint=",
            f"trainer {endpoints.index(current)} is: the order of `trainers` gives the numbers",
        )


def inter_ranks(ranks: Ranks, config: DistributeTranspilerConfig) -> int:
    """The number of ranks per group of hierarchical all-reduce; 0 if it is flat.

    Defaults to the number of ranks on this host.

    Raises:
        AssertionError: the groups do not come out even (and a ConfigError as well).
    """
    if not config.use_hierarchical_allreduce:
        return 0
    size = config.hierarchical_allreduce_inter_nranks
    if size <= 1:
        host = ranks.endpoints[ranks.rank].rpartition(":")[0]
        size = sum(e.rpartition(":")[0] == host for e in ranks.endpoints)
    if size <= 1 or ranks.size <= size or ranks.size % size:
        raise _refuse(
            AssertionError,
            f"{ranks.size} trainers make no even groups of {size}",
            "hierarchical_allreduce_inter_nranks",
            "choose a number above 1 that divides the number of trainers and is smaller, or switch "
            "use_hierarchical_allreduce off",
        )
    return size


def _refuse(builtin: type[Exception], message: str, argument: str, hint: str) -> BiremeError:
    return as_builtin(builtin)(message, where=f"{WHERE}({argument})", hint=hint)
