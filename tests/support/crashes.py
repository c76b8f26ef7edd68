"""Kills a server of an in-process job at a chosen point, and starts its successor.

What a killed process would do no more does not happen: nothing is answered, nothing is written.
"""

import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bireme.io.disk import Disk
from bireme.trainer.registry import trainers

from .cluster import Cluster, Server, cluster, side_by_side
from .job import Job, Trainer

__all__ = ["Crash", "CrashingDisk", "Killed", "Outcome", "run_job"]


class Killed(Exception):
    """What the threads of a killed server end with."""


class Crash:
    """Kills at the `count`-th time that `point` is passed; once."""

    def __init__(self, point: str, count: int = 1) -> None:
        self.point = point
        self.left = count
        self.server: Server | None = None
        self.happened = threading.Event()

    def passes(self, point: str) -> None:
        """This point is passed.

        Raises:
            Killed: the server is dead, maybe since now.
        """
        if self.happened.is_set():
            raise Killed(self.point)
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                self.strike()

    def strike(self) -> None:
        if self.server is not None:
            self.server.kill()
        self.happened.set()
        raise Killed(self.point)

    def watch(self, server: Server) -> None:
        """Let this server pass points."""
        self.server = server
        service, updates = server.service, server.updates
        apply, handle, answer, hear = (
            updates._apply,
            service._core.handle,
            service._answer,
            service.hear,
        )

        def applying(*given: Any) -> None:
            self.passes("before apply")
            apply(*given)
            self.passes("after apply")

        def handling(event: Any) -> Any:
            return () if self.happened.is_set() else handle(event)

        def answering(reply: Any) -> None:
            if self.happened.is_set():
                return
            kind = type(reply.answer).__name__
            answer(reply)
            try:
                self.passes(f"after {kind}")
            except Killed:
                return

        def hearing(received: Any) -> Any:
            kind = type(received.message).__name__
            self.passes(f"before {kind}")
            heard = hear(received)
            self.passes(f"heard {kind}")
            return heard

        updates._apply = applying  # type: ignore[method-assign,assignment]
        service._core.handle = handling  # type: ignore[method-assign]
        service._answer = answering  # type: ignore[method-assign]
        service.hear = hearing  # type: ignore[method-assign]


class CrashingDisk(Disk):
    """Passes a point before, within and after every change."""

    def __init__(self, crash: Crash) -> None:
        self._crash = crash
        self.done: list[str] = []

    def _around(self, name: str, change: Callable[[], None], torn: Callable[[], None]) -> None:
        self.done.append(name)
        self._crash.passes(f"before {name}")
        try:
            self._crash.passes(f"within {name}")
        except Killed:
            if self._crash.point == f"within {name}" and self._crash.left == 0:
                torn()
            raise
        change()
        self._crash.passes(f"after {name}")

    def make(self, folder: Path) -> None:
        self._around("make", lambda: super(CrashingDisk, self).make(folder), _nothing)

    def write(self, path: Path, pieces: Iterable[Any]) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        self._around(
            "write",
            lambda: super(CrashingDisk, self).write(path, [data]),
            lambda: _put(path, data[: len(data) // 2]),
        )

    def append(self, file: BinaryIO, pieces: Iterable[Any]) -> None:
        data = b"".join(bytes(piece) for piece in pieces)
        self._around(
            "append",
            lambda: super(CrashingDisk, self).append(file, [data]),
            lambda: _put_end(file, data[: len(data) // 2]),
        )

    def rename(self, old: Path, new: Path) -> None:
        self._around("rename", lambda: super(CrashingDisk, self).rename(old, new), _nothing)

    def unlink(self, path: Path) -> None:
        self._around("unlink", lambda: super(CrashingDisk, self).unlink(path), _nothing)


def _nothing() -> None:
    pass


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _put_end(file: BinaryIO, data: bytes) -> None:
    os.write(file.fileno(), data)


class Outcome:
    """How a job has ended: what its trainers gave, and all that its servers hold."""

    def __init__(self, results: list[Any], servers: list[Server]) -> None:
        self.results = results
        self.state = {
            (server.updates.keeper.part, piece.name, piece.begin): (piece.array, piece.ids)
            for server in servers
            for piece in server.updates.keeper.capture()
        }

    def check_equals(self, other: "Outcome") -> None:
        """Bit for bit."""
        assert self.results == other.results
        assert self.state.keys() == other.state.keys()
        for key, (array, ids) in self.state.items():
            expected, those = other.state[key]
            assert array.tobytes() == expected.tobytes(), key
            np.testing.assert_array_equal(ids, those)


class _Run:
    """A job whose server number `at` is killed by `crash`, and starts again."""

    def __init__(self, job: Job, made: Cluster, crash: Crash | None, at: int) -> None:
        self._job = job
        self._made = made
        self._crash = crash
        self._at = at
        self._over = threading.Event()

    def serve(self) -> None:
        for number, endpoint in enumerate(self._job.endpoints):
            if self._crash is None or number != self._at:
                self._job._serve(self._made, endpoint)
            else:
                self._serve_until(self._crash, endpoint)

    def _serve_until(self, crash: Crash, endpoint: str) -> None:
        made, disk = self._made, CrashingDisk(crash)
        made.disk = disk
        try:
            server = self._job._serve(made, endpoint)
        except Killed:  # before it has served anybody
            made.disk = None
            self._job._serve(made, endpoint)
            return
        made.disk = None
        crash.watch(server)
        keeper = server.updates.keeper
        keeper.write = partial(keeper.write, disk=disk)  # type: ignore[method-assign]

    def _restart(self) -> None:
        assert self._crash is not None
        while not self._crash.happened.wait(0.01):
            if self._over.is_set():
                return
        if self._crash.server is not None:
            self._job._serve(self._made, self._job.endpoints[self._at])
            self._crash.server.service.close()

    def train(self, body: Callable[[Trainer], Any]) -> list[Any]:
        def work(trainer: Trainer, startup: Any) -> Any:
            with trainer.executor:
                trainer.executor.run(startup, scope=trainer.scope)
                return body(trainer)

        ready = [self._job.trainer(number) for number in range(self._job.trainers)]
        tasks = {str(trainer.number): partial(work, trainer, startup) for trainer, startup in ready}
        restarting = threading.Thread(target=self._restart)
        if self._crash is not None:
            restarting.start()
        try:
            found = side_by_side(tasks)
        finally:
            self._over.set()
            if self._crash is not None:
                restarting.join()
        for result in found.values():
            if isinstance(result, Exception):
                raise result
        return [found[str(trainer.number)] for trainer, _ in ready]


def run_job(
    job: Job, body: Callable[[Trainer], Any], crash: Crash | None = None, at: int = 0
) -> Outcome:
    """Run a job to its end; the server number `at` is killed by `crash`, and starts again."""
    with cluster() as made:
        dial, trainers.dial = trainers.dial, made.dial
        try:
            run = _Run(job, made, crash, at)
            run.serve()
            results = run.train(body)
            servers = [made.servers[endpoint] for endpoint in job.endpoints]
            for server in servers:
                server.result()
            return Outcome(results, servers)
        finally:
            trainers.dial = dial
