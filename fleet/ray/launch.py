"""Start a job on a Ray cluster, and watch it to its end as `bireme launch` does."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from bireme.errors import PeerError

from ..launcher.job import Job
from ..launcher.watch import run_job
from ..signals import INTERRUPTED
from ..telemetry.job_file import read
from .cluster import RayCluster, Resources

__all__ = ["launch"]

EACH: Resources = {"CPU": 1}


def launch(
    train: str | Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    servers: int = 2,
    trainers: int = 2,
    mode: str = "pserver",
    restart: int = 0,
    resources: Mapping[str, Resources] | None = None,
    strategy: str = "PACK",
    variables: Mapping[str, str] | None = None,
    patience: float = 60.0,
    log_dir: str = "log",
    **options: Any,
) -> list[Any]:
    """Train with servers and trainers as actors of a Ray cluster, and return when all have ended.

    Each actor runs the script, or calls the function, in a process of its own, with the environment
    that `bireme launch` gives: the same script runs in both. What trainer 0 prints appears here,
    and all logs are written here. With `restart`, Ray starts an actor that has died again, and the
    job goes on as under `bireme launch --restart`. Connects to the cluster that RAY_ADDRESS names,
    or starts one on this machine, unless `ray.init` was called.

    Args:
        train: the path of a script, which every node finds, or a function.
        arguments: of the script, as words in which {role}, {index}, ... are filled in; or of the
            function.
        mode: `pserver`, or `nccl2`: trainers that all-reduce.
        resources: what Ray reserves for each process: `{"server": {"CPU": 1}, "trainer": {"CPU": 4,
            "GPU": 1}}`. By default one CPU each.
        strategy: of Ray's placement group: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD.
        variables: more environment variables. FLAGS_* and BIREME_* of this process are passed on.
        patience: seconds for Ray to place the actors.
        options: others of `bireme launch`: steps, grace, dashboard, tensorboard, cpu, admin.

    Returns:
        What the function returned in each trainer, by rank; None for a script.

    Raises:
        ConfigError: Ray is not installed or has no place, or the job is none.
        PeerError: the job has failed; `.peer` is the process that began it.
    """
    wanted = {"server": EACH, "trainer": EACH, **(resources or {})}
    job = Job(
        f"{train.__module__}.{train.__qualname__}" if callable(train) else train,
        () if callable(train) else tuple(map(str, arguments)),
        servers=servers,
        trainers=trainers,
        mode=mode,
        restart=restart,
        log_dir=log_dir,
        module=callable(train),
        gpus=("0",) * trainers if wanted["trainer"].get("GPU") else (),
        **options,
    ).check()
    function = _pickled(train, arguments) if callable(train) else b""
    environ = {**os.environ, **(variables or {})}
    with RayCluster(job, function, wanted, strategy, variables or (), patience) as cluster:
        code = run_job(job, environ, runner=cluster)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise _failure(code, log_dir)
    return [_loaded(cluster.results.get(rank)) for rank in range(trainers)]


def _pickled(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """A call, inside of where this process finds modules, which the call may need to be read."""
    call = cloudpickle.dumps((function, tuple(arguments)))
    data: bytes = cloudpickle.dumps((sys.path, call))
    return data


def _failure(code: int, log_dir: str) -> PeerError:
    """The launcher has printed the cause: here is who it was."""
    blamed = next((process for process in read(Path(log_dir)) if process.blamed), None)
    name = f"{blamed.role} {blamed.index}" if blamed else "the job"
    log = os.path.join(log_dir, blamed.log) if blamed else log_dir
    return PeerError(f"{name} failed with exit code {code}", peer=name, where=f"see {log}")


def _loaded(data: bytes | None) -> Any:
    return None if data is None else cloudpickle.loads(data)
