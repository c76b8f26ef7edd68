"""A whole job in one process: transpiled programs, real executors, function calls for sockets.

Every role builds and transpiles the program for itself, as its process would. Trainers are
threads with scopes of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bireme as fluid
from bireme import flags
from bireme.ir import Program
from bireme.runtime.scope import Scope
from bireme.trainer.registry import trainers

from .cluster import Cluster, Server, cluster, side_by_side

Way = Callable[[Any], Any]  # how servers are reached -> how they are reached now
Build = Callable[[], tuple[Program, Program, Any]]  # -> main, startup, loss


def save_to(root: Path, every: int, durability: str = "checkpoint") -> Path:
    """Let jobs of this test save there after every so many steps; returns `root`."""
    settings = {"checkpoint_dir": str(root), "checkpoint_every_steps": every}
    flags.set_flags({**settings, "durability": durability})
    return root


@dataclass
class Trainer:
    """One trainer at work: `step(feed)` gives the loss."""

    number: int
    main: Program
    loss: Any
    scope: Scope
    executor: fluid.Executor
    before: Program  # a clone for tests, made before `transpile`

    def step(self, feed: dict[str, Any], fetch: Any = None) -> float:
        fetches = [fetch or self.loss]
        found = self.executor.run(self.main, feed, fetches, scope=self.scope)
        return float(found[0].reshape(-1)[0])


@dataclass
class Job:
    """Servers and trainers of one model."""

    build: Build
    servers: int = 2
    trainers: int = 2
    sync: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    door: type[Any] = fluid.DistributeTranspiler

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{7000 + k}" for k in range(self.servers)]

    def transpiled(self, trainer: int = 0) -> tuple[Any, Program, Program, Any, Program]:
        """The transpiler, the programs it has changed, the loss, and a clone made before.

        Not for trainers side by side: the guards of programs and names are the whole process's.
        """
        main, startup, loss = self.build()
        before = main.clone(for_test=True)
        config = fluid.DistributeTranspilerConfig()
        config.sync_mode = self.sync
        for name, value in self.config.items():
            setattr(config, name, value)
        transpiler = self.door(config)
        transpiler.transpile(
            trainer,
            program=main,
            startup_program=startup,
            pservers=",".join(self.endpoints),
            trainers=self.trainers,
            sync_mode=self.sync,
        )
        return transpiler, main, startup, loss, before

    def serve(self, made: Cluster) -> list[Server]:
        return [self._serve(made, endpoint) for endpoint in self.endpoints]

    def _serve(self, made: Cluster, endpoint: str) -> Server:
        transpiler, *_ = self.transpiled()
        program = transpiler.get_pserver_program(endpoint)
        startup = transpiler.get_startup_program(endpoint, program)
        scope, executor = Scope(), fluid.Executor(fluid.CPUPlace())
        executor.run(startup, scope=scope)

        def prepare(block: int) -> Callable[[], None]:
            ready: Callable[[], None] = executor.prepare(program, block, scope)
            return ready

        return made.serve(program, scope, prepare)

    def trainer(self, number: int) -> tuple[Trainer, Program]:
        transpiler, _, startup, loss, before = self.transpiled(number)
        main = transpiler.get_trainer_program(wait_port=False)
        executor = fluid.Executor(fluid.CPUPlace())
        return Trainer(number, main, loss, Scope(), executor, before), startup

    @contextmanager
    def servers_up(self, way: Way = lambda dial: dial) -> Iterator[list[Server]]:
        """Servers that this process's trainers reach; `way` puts trouble on it."""
        with cluster() as made:
            dial, trainers.dial = trainers.dial, way(made.dial)
            try:
                yield self.serve(made)
            finally:
                trainers.dial = dial

    def run(
        self, body: Callable[[Trainer], Any], way: Way = lambda dial: dial
    ) -> tuple[list[Any], list[Server]]:
        """Every trainer runs its startup program and `body`; what the bodies gave, in order."""
        with self.servers_up(way) as servers:
            ready = [self.trainer(i) for i in range(self.trainers)]

            def work(trainer: Trainer, startup: Program) -> Any:
                with trainer.executor:
                    trainer.executor.run(startup, scope=trainer.scope)
                    return body(trainer)

            tasks = {
                str(t.number): (lambda t=t, startup=startup: work(t, startup))
                for t, startup in ready
            }
            found = side_by_side(tasks)
            results = [found[str(t.number)] for t, _ in ready]
            if not any(isinstance(result, Exception) for result in results):
                for server in servers:
                    server.result()
            return results, servers
