"""Async: gradients wait in queues; threads of the communicator send them merged and receive
parameters, beside the thread that trains.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import BiremeError, ConfigError, PeerError
from bireme.net.frames import Value
from bireme.runtime.scope import Scope

from . import instructions as i
from .queues import Address, Queues, merge
from .server_pool import ServerPool
from .strategies import Immediate, Pushed, Wanted, send_now

__all__ = ["Queued", "Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a communicator sends and receives; see FLAGS_communicator_*."""

    merge: int = 1
    queue: int = 1
    pushes_per_pull: int = 1
    independent: bool = True
    waits: int = 5
    threads: int = 5
    sums: bool = True
    unite_rows: bool = True
    patience: float = 180.0


class Queued(Immediate):
    """One trainer's queues and threads."""

    def __init__(self, wanted: Wanted, settings: Settings) -> None:
        super().__init__()  # its lock: one exchange at a time
        self._wanted = wanted
        self._settings = settings
        self._queues = Queues(settings.queue)
        self._scope: Scope | None = None
        self._threads: list[threading.Thread] = []
        self._pushed = threading.Condition()
        self._fresh = 0  # pushes since the last pull
        self._stopped = False

    def push(self, pool: ServerPool, scope: Scope, values: Pushed) -> None:
        self._scope = scope
        if not self._threads:
            self._start(pool)
        for endpoint, named in values.items():
            for name, value in named.items():
                self._queues.put((endpoint, name), _own(value), self._settings.patience)

    def barrier(self, pool: ServerPool, env: Any, barrier: i.Barrier) -> None:
        raise ConfigError(
            "an asynchronous communicator takes no barrier",
            hint="this program is half-async: Communicator(program, 2)",
        )

    def settle(self, pool: ServerPool, env: Any) -> None:
        self._queues.settle(self._settings.patience)

    def stop(self, pool: ServerPool) -> None:
        try:
            self._queues.settle(self._settings.patience)
        finally:
            self._queues.close()
            with self._pushed:
                self._stopped = True
                self._pushed.notify_all()
            for thread in self._threads:
                thread.join(self._settings.patience)
        if self._scope is not None:
            self._pull(pool)

    # -- threads ---------------------------------------------------------------------------
    def _start(self, pool: ServerPool) -> None:
        tasks = [self._send] + [self._receive] * self._settings.independent
        for task in tasks:
            thread = threading.Thread(target=self._guarded, args=(task, pool), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, task: Callable[[ServerPool], None], pool: ServerPool) -> None:
        try:
            task(pool)
        except BiremeError as error:
            self._fail(error)
        except Exception as error:  # whoever puts or stops must hear of it, whatever it is
            self._fail(PeerError(f"the communicator failed: {error!r}"))

    def _fail(self, error: BiremeError) -> None:
        self._queues.fail(error)
        with self._pushed:
            self._stopped = True
            self._pushed.notify_all()

    def _send(self, pool: ServerPool) -> None:
        given = self._settings
        with ThreadPoolExecutor(given.threads, "merge") as mergers:
            while batch := self._queues.take(given.merge, given.waits):
                values = list(
                    (mergers.map if given.merge > 1 else map)(self._merged, batch.values())
                )
                with self.lock:
                    send_now(pool, _by_server(batch, values))
                    pool.exchange({endpoint: () for endpoint, _ in batch})
                self._count(pool, max(map(len, batch.values())))

    def _merged(self, values: list[Value]) -> Value:
        given = self._settings
        return merge(values, mean=not given.sums, unite_rows=given.unite_rows)

    def _count(self, pool: ServerPool, pushes: int) -> None:
        with self._pushed:
            self._fresh += pushes
            self._pushed.notify_all()
            if self._settings.independent:  # backpressure
                self._pushed.wait_for(lambda: self._stopped or not self._due())
        if not self._settings.independent and self._fresh >= self._settings.pushes_per_pull:
            self._fresh = 0
            self._pull(pool)

    def _receive(self, pool: ServerPool) -> None:
        while True:
            with self._pushed:
                self._pushed.wait_for(self._due)
                if self._stopped:
                    return
                self._fresh = 0
                self._pushed.notify_all()
            self._pull(pool)

    def _due(self) -> bool:
        return self._stopped or self._fresh >= self._settings.pushes_per_pull

    def _pull(self, pool: ServerPool) -> None:
        scope = self._scope
        assert scope is not None
        with self.lock:
            found = pool.exchange(self._wanted.names)
        self._wanted.deliver(found, lambda name, value: _put(scope, name, value))


def _put(scope: Scope, name: str, value: Value) -> None:
    (scope.find_var(name) or scope.var(name)).put(value)


def _own(value: Value) -> Value:
    """A copy: the program goes on before the value is sent."""
    if isinstance(value, SelectedRows):
        return SelectedRows(
            np.array(to_host(value.rows)), np.array(to_host(value.value)), value.height
        )
    return np.array(to_host(value.array if isinstance(value, LoDTensor) else value))


def _by_server(addresses: Iterable[Address], values: Iterable[Value]) -> Pushed:
    found: dict[str, dict[str, Value]] = {}
    for (endpoint, name), value in zip(addresses, values, strict=True):
        found.setdefault(endpoint, {})[name] = value
    return found
