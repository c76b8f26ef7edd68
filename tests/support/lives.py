"""A whole job in one process whose processes are killed and started again: servers and trainers
alone, or all of them at once.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bireme.trainer.registry import trainers

from .cluster import Cluster, Server, cluster, side_by_side
from .crashes import Crash, Outcome
from .job import Job, Trainer
from .killed_trainers import Body, Gone, Kill

__all__ = ["Life", "run_lives"]

Resume = Callable[[Trainer], int | None]


@dataclass(frozen=True)
class Life:
    """One start of the job. Each process dies at its points in turn and is started again alone,
    except where `all_die`: then every trainer dies at its last point, and the servers after them.
    """

    servers: Mapping[int, Sequence[Crash]] = field(default_factory=dict)
    trainers: Mapping[int, Sequence[Kill]] = field(default_factory=dict)
    all_die: bool = False

    def check_happened(self) -> None:
        """Every process has died where it should."""
        deaths: list[Crash | Kill] = [each for point in self.servers.values() for each in point]
        deaths += [each for point in self.trainers.values() for each in point]
        for death in deaths:
            assert death.happened.is_set(), vars(death)


def run_lives(job: Job, body: Body, resume: Resume, lives: Sequence[Life] = (Life(),)) -> Outcome:
    """Run a job through its lives; what its trainers give is that of their last ones. Trainers
    `resume` after their startup program, and run `body` from that step on.
    """
    for life in lives:
        with cluster() as made:
            dial, trainers.dial = trainers.dial, made.dial
            try:
                run = _Run(job, made, life, body, resume)
                results = run.results()
                life.check_happened()
                if not life.all_die:
                    return Outcome(results, run.ended())
            finally:
                trainers.dial = dial
    raise AssertionError("the last life of a job ends in order")


class _Run:
    """One life of a job."""

    def __init__(self, job: Job, made: Cluster, life: Life, body: Body, resume: Resume) -> None:
        self._job, self._made, self._life = job, made, life
        self._body, self._resume = body, resume
        self._over = threading.Event()
        self._ready = [
            [job.trainer(number) for _ in range(1 + len(life.trainers.get(number, ())))]
            for number in range(job.trainers)
        ]

    def results(self) -> list[Any]:
        """Serve and train; what the trainers gave."""
        restarting = [self._serve(number) for number in range(self._job.servers)]
        for thread in restarting:
            thread.start()
        kills = [kill for each in self._life.trainers.values() for kill in each]
        tasks = {str(number): partial(self._train, number) for number in range(self._job.trainers)}
        try:
            with ExitStack() as watching:
                for kill in kills:
                    kill.made = self._made
                    watching.enter_context(kill.watching())
                found = side_by_side(tasks)
        finally:
            self._over.set()
            for thread in restarting:
                thread.join()
        if self._life.all_die:
            for server in self._made.servers.values():
                server.kill()
        for result in found.values():
            if isinstance(result, Exception):
                raise result
        return [found[name] for name in tasks]

    def ended(self) -> list[Server]:
        """The servers, which have ended in order."""
        servers = list(self._made.servers.values())
        for server in servers:
            server.result()
            recorder = server.updates.recorder
            if recorder is not None:
                server.service.close()
                recorder.remove()
        return servers

    def _serve(self, number: int) -> threading.Thread:
        """Start a server; the thread that will start it again each time it is killed."""
        crashes = self._life.servers.get(number, ())
        server = self._job._serve(self._made, self._job.endpoints[number])
        return threading.Thread(target=self._restart, args=(number, server, crashes))

    def _restart(self, number: int, server: Server, crashes: Sequence[Crash]) -> None:
        for crash in crashes:
            crash.watch(server)
            while not crash.happened.wait(0.01):
                if self._over.is_set():
                    return
            server.service.close()
            with server.succeeded():
                server = self._job._serve(self._made, self._job.endpoints[number])

    def _train(self, number: int) -> Any:
        kills = self._life.trainers.get(number, ())
        for kill, (trainer, startup) in zip(kills, self._ready[number], strict=False):
            kill.thread = threading.current_thread()
            try:
                return self._live(trainer, startup)
            except Gone:
                continue
        return None if self._life.all_die else self._live(*self._ready[number][-1])

    def _live(self, trainer: Trainer, startup: Any) -> Any:
        with trainer.executor:
            trainer.executor.run(startup, scope=trainer.scope)
            return self._body(trainer, self._resume(trainer) or 0)
