"""A Ray cluster as the place where a job's processes run: an actor for each process.

Ray places the actors, all or none, and starts one again that has died.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from bireme.errors import ConfigError
from bireme.extras import library
from bireme.paths import end_of, new_file

from ..launcher.job import BLAS, Job, Seat, arguments_of
from ..launcher.log_folder import opened
from ..launcher.runner import Files, Started
from ..log_relay import LogFile
from .actor import Order, Seated

__all__ = ["RayCluster", "Resources"]

Resources = Mapping[str, float]  # CPU, GPU, and the cluster's own
OURS = ("FLAGS_", "BIREME_", "GLOG_")  # variables that go to the processes
PAUSE = 0.2  # seconds between two tries to reach an actor that Ray restarts
RESTART_WAIT = 60.0  # seconds for Ray to start an actor again that has died
LAST_WAIT = 10.0  # seconds for a killed process to be reported


class RayCluster:
    """The actors of a job, while the context lasts. `results` has what trainers' functions return,
    pickled, by rank. Variables whose names are `passed` go to the processes, beside our own.
    """

    def __init__(
        self,
        job: Job,
        function: bytes,
        resources: Mapping[str, Resources],
        strategy: str,
        passed: Collection[str],
        patience: float,
    ) -> None:
        self._ray = library("ray", "ray", "a job on a Ray cluster")
        if not self._ray.is_initialized():
            self._ray.init()
        self._function = function
        self._job = job
        self._roles = ["server"] * job.server_count + ["trainer"] * job.trainers
        self._resources = [dict(resources[role]) for role in self._roles]
        self._strategy = strategy
        self._passed = passed
        self._patience = patience
        self._actors: list[Any] = []
        self.results: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        self._group = self._ray.util.placement_group(self._resources, self._strategy)
        if not self._group.wait(self._patience):
            self._ray.util.remove_placement_group(self._group)
            raise ConfigError(
                f"the Ray cluster has no place for {len(self._roles)} processes",
                where=f"they ask for {_sum(self._resources)}; the cluster has "
                f"{_sum([self._ray.cluster_resources()])}, and {self._free()} free",
                hint="start fewer processes, ask for less with `resources`, or add nodes",
            )
        remote = self._ray.remote(Seated)
        for i, wanted in enumerate(self._resources):
            named = {"num_cpus": wanted.pop("CPU", 0), "num_gpus": wanted.pop("GPU", 0)}
            place = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=i
            )
            options = {
                **named,
                "resources": wanted,
                "scheduling_strategy": place,
                "max_restarts": self._job.restart,
                "max_concurrency": 2,  # a process, and signals to it
            }
            self._actors.append(remote.options(**options).remote())
        return self

    def __exit__(self, *error: object) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._ray.util.remove_placement_group(self._group)

    def _free(self) -> str:
        return _sum([self._ray.available_resources()])

    # -- the port of the launcher ------------------------------------------------------------------
    @contextmanager
    def reserved(self, job: Job) -> Iterator[Sequence[str]]:
        """Ask every actor for a port, and that of the first rank for one more if there are no
        servers.
        """
        until = time.monotonic() + self._patience
        counts = [1 + (i == 0 and not job.server_count) for i in range(job.size)]
        self._endpoints = [
            self._asked(actor, count, until)
            for actor, count in zip(self._actors, counts, strict=True)
        ]
        own, more = [e[0] for e in self._endpoints], [e[1] for e in self._endpoints if e[1:]]
        yield [*own, *more]

    def _asked(self, actor: Any, count: int, until: float) -> tuple[str, ...]:
        """The endpoints of an actor, which may have to be started again first."""
        errors = self._ray.exceptions
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                return tuple(self._ray.get(actor.reserve.remote(count), timeout=left))
            except errors.ActorUnavailableError:
                time.sleep(PAUSE)
            except errors.GetTimeoutError:
                raise ConfigError(
                    f"Ray has not started an actor within {self._patience:g} s",
                    where=f"the cluster has {self._free()} free",
                    hint="`ray status` shows what it waits for",
                ) from None

    def start(self, job: Job, seat: Seat, environ: Mapping[str, str], files: Files) -> Started:
        place = seat.index + (job.server_count if seat.role == "trainer" else 0)
        script = ("-m", job.script) if job.module else (job.script,)
        kept = {n: v for n, v in environ.items() if n.startswith(OURS) or n in self._passed}
        cores = str(max(1, int(self._resources[place].get("CPU", 1))))
        order = Order(
            (*script, *arguments_of(job, seat)),
            self._function,
            {**dict.fromkeys(BLAS, cores), **kept},
            seat.variables,
            self._endpoints[place],
            os.getcwd(),
            job.size,
            str(self._ray.util.get_node_ip_address()) if job.admin else "",
        )
        rank = seat.index if seat.role == "trainer" else -1
        return RayProcess(self._ray, self._actors[place], order, files, self.results, rank)


class RayProcess:
    """A process that an actor runs, as the launcher watches one of its own."""

    def __init__(
        self, ray: Any, actor: Any, order: Order, files: Files, results: dict[int, bytes], rank: int
    ) -> None:
        self.life, self._life_end = os.pipe()
        self.reports, self._reports_end = os.pipe()
        os.set_blocking(self.reports, False)
        self.pid = 0  # on its host
        self._until = time.monotonic() + RESTART_WAIT
        self._ray = ray
        self._actor = actor
        self._files = files
        self._results = results
        self._rank = rank
        self._code = -int(signal.SIGKILL)  # until the actor says another
        self._thread = threading.Thread(target=self._follow, args=[order], daemon=True)
        self._thread.start()

    def signal(self, number: signal.Signals) -> None:
        self._actor.signal.remote(int(number))

    def wait(self) -> int:
        self._thread.join(LAST_WAIT)
        return self._code

    def _follow(self, order: Order) -> None:
        try:
            with opened(end_of, Path(self._files.log)) as file:
                log = LogFile(file.fileno(), self._cut, closefd=False)
                while self._is_restarting(order, log.write):
                    time.sleep(PAUSE)
        finally:
            os.close(self._reports_end)
            os.close(self._life_end)

    def _cut(self, reason: str) -> None:
        row = json.dumps({"cut": reason, "time": time.monotonic()})
        self._take("reports", f"{row}\n".encode(), None)

    def _is_restarting(self, order: Order, log: Any) -> bool:
        """Run the process to its end; True if its actor has yet to be started again for it."""
        errors = self._ray.exceptions
        stream = self._actor.run.options(num_returns="streaming").remote(order)
        try:
            for reference in stream:
                kind, value = self._ray.get(reference)
                self._take(kind, value, log)
        except errors.RayActorError as error:
            unreached = not self.pid and isinstance(error, errors.ActorUnavailableError)
            if unreached and time.monotonic() < self._until:
                return True
            host = order.endpoints[0].rpartition(":")[0]
            log(f"bireme: its Ray actor on {host} has died\n".encode())
        except errors.RayTaskError as error:
            log(f"bireme: its Ray actor cannot run it: {error}\n".encode())
            self._code = 1
        return False

    def _take(self, kind: str, value: Any, log: Any) -> None:
        if kind == "log":
            log(value)
        elif kind == "reports":
            with suppress(BrokenPipeError):  # the launcher has seen enough
                os.write(self._reports_end, value)
        elif kind == "pid":
            self.pid = value
        elif kind == "exit":
            self._code = value
        elif kind in ("error", "curves") and (path := getattr(self._files, kind)):
            with suppress(OSError), new_file(path) as file:
                file.write(value)
        elif kind == "result" and self._rank >= 0:
            self._results[self._rank] = value


def _sum(resources: Sequence[Resources]) -> str:
    """`4 CPU, 2 GPU`."""
    names = sorted({name for each in resources for name in each if name in ("CPU", "GPU")})
    found = (f"{sum(each.get(name, 0) for each in resources):g} {name}" for name in names)
    return ", ".join(found) or "nothing"
