"""Kills a trainer of an in-process job at a chosen point, and starts its successor.

What a killed process would do no more does not happen: nothing is said, nothing is written.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bireme.errors import ProtocolError
from bireme.io.disk import UnsyncedDisk
from bireme.pserver.shell.server import Server
from bireme.trainer.native_server import NativeServer
from bireme.trainer.registry import trainers
from bireme.trainer.server_pool import ServerPool

from .cluster import Cluster, cluster, side_by_side
from .crashes import Outcome
from .job import Job, Trainer

__all__ = ["Gone", "Kill", "run_with_successor"]


class Gone(BaseException):
    """What the thread of a killed trainer ends with."""


class Kill:
    """Kills trainer `number` at the `count`-th time that it passes `point`; "any" is every point.

    Points are before and after each push, barrier, pull and result, and before, within and after
    the writing of a record.
    """

    def __init__(self, number: int, point: str, count: int) -> None:
        self.number = number
        self.point = point
        self.left = count
        self.happened = threading.Event()
        self.thread: threading.Thread | None = None
        self.passed: list[str] = []
        self.made: Cluster | None = None
        self.life = 0  # incarnation of the killed trainer

    def passes(self, point: str) -> None:
        if threading.current_thread() is not self.thread or self.happened.is_set():
            return
        self.passed.append(point)
        if self.point in ("any", point):
            self.left -= 1
            if self.left == 0:
                self.strike()
                raise Gone(point)

    def strike(self) -> None:
        self.happened.set()
        trainer = trainers.of(self.number)
        self.life = trainer.job.incarnation
        trainer.job.end()
        trainer.silence()
        assert self.made is not None
        for server in trainer.servers.native:
            server.cancel()
        for at in self.made.servers.values():
            self.made.loop.soon(at.service._reset, (self.number, self.life))
        trainers.known.pop(self.number)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let this process's trainers pass points."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("push", "barrier", "pull", "result"):
                patch.setattr(NativeServer, name, self._around(name, getattr(NativeServer, name)))
            patch.setattr(UnsyncedDisk, "write", self._writing(UnsyncedDisk.write))
            patch.setattr(Server, "hear", self._hearing(Server.hear))
            patch.setattr(ServerPool, "read", self._around("read", ServerPool.read))
            yield

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def around(*given: Any, **named: Any) -> Any:
            self.passes(f"before {name}")
            found = method(*given, **named)
            self.passes(f"after {name}")
            return found

        return around

    def _hearing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """What is still under way from a killed trainer is lost."""

        def hear(server: Server, received: Any) -> Any:
            if getattr(received.message, "incarnation", None) == self.life:
                raise ProtocolError("killed by the test")
            return method(server, received)

        return hear

    def _writing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def write(disk: UnsyncedDisk, path: Path, pieces: Any) -> None:
            data = b"".join(bytes(piece) for piece in pieces)
            self.passes("before record")
            try:
                self.passes("within record")
            except Gone:
                path.write_bytes(data[: random.Random(len(data)).randrange(len(data))])
                raise
            method(disk, path, [data])
            self.passes("after record")

        return write


Body = Callable[[Trainer, int], Any]  # from a step on


def run_with_successor(
    job: Job, body: Body, resume: Callable[[Trainer], int | None], kill: Kill | None = None
) -> tuple[Outcome, Any]:
    """Run a job to its end; `kill` ends one of its trainers, which is started again. The successor
    `resume`s after its startup program. Its result is the second one.
    """
    with cluster() as made:
        dial, trainers.dial = trainers.dial, made.dial
        try:
            job.serve(made)
            ready = [job.trainer(number) for number in range(job.trainers)]
            spare = job.trainer(kill.number) if kill is not None else None
            after: list[Any] = []

            def work(trainer: Trainer, startup: Any) -> Any:
                if kill is not None and trainer.number == kill.number:
                    kill.thread, kill.made = threading.current_thread(), made
                    try:
                        with trainer.executor:
                            trainer.executor.run(startup, scope=trainer.scope)
                            found = body(trainer, 0)
                        return found
                    except Gone:
                        pass
                    assert spare is not None
                    trainer, startup = spare
                    with trainer.executor:
                        trainer.executor.run(startup, scope=trainer.scope)
                        begin = resume(trainer) or 0
                        after.append((begin, body(trainer, begin)))
                    return None
                with trainer.executor:
                    trainer.executor.run(startup, scope=trainer.scope)
                    return body(trainer, 0)

            watch = kill.watching() if kill is not None else nullcontext()
            with watch:
                found = side_by_side({str(t.number): partial(work, t, s) for t, s in ready})
            for result in found.values():
                if isinstance(result, Exception):
                    raise result
            servers = list(made.servers.values())
            for server in servers:
                server.result()
            results = [found[str(trainer.number)] for trainer, _ in ready]
            return Outcome(results, servers), after[0] if after else None
        finally:
            trainers.dial = dial
