"""What a running communicator does with a trainer's values: send at once, or queue them.

A station stands between a program's operators and the link. The register says which station
serves a trainer; geo's stands in `geo`.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from bireme.errors import BiremeError, ConfigError, PeerError
from bireme.rpc.codec import Value
from bireme.runtime.arrays import to_host
from bireme.runtime.scope import Scope
from bireme.runtime.values import LoDTensor, SelectedRows

from . import routes as r
from .link import Link
from .queues import Address, Queues, merge

__all__ = [
    "PLAIN",
    "Direct",
    "Plain",
    "Queued",
    "Settings",
    "Station",
    "Wanted",
    "begun",
    "finish",
    "guard",
    "is_running",
    "register",
    "station_of",
]

GEO_HINT = (
    "start one before training: fluid.communicator.Communicator(program, 3, "
    "{'push_vars': transpiler.vars_info, 'trainers': trainers, 'push_nums': steps}).start()"
)


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


class Station(Protocol):
    """What the operators of a program with a communicator call, on the thread that runs it."""

    lock: threading.RLock

    def push(self, link: Link, scope: Scope, address: Address, value: Value) -> None:
        """A gradient is ready."""

    def barrier(self, link: Link, env: Any, route: r.Barrier) -> None:
        """The step's gradients have all been pushed."""

    def initialise(self, link: Link, env: Any) -> None:
        """The startup program has run."""

    def touched(self, link: Link, env: Any, ids: Mapping[str, list[Any]]) -> None:
        """A step of local training is over; it touched these rows of these tables."""

    def stop(self, link: Link) -> None:
        """Send what is left and receive once more."""


# -- the register ------------------------------------------------------------------------------
_running: dict[int, Station] = {}
_begun: WeakValueDictionary[int, Scope] = WeakValueDictionary()  # where geo's startup has run


def register(trainer: int, station: Station | None) -> None:
    """From now on `station` serves the trainer; None ends that."""
    if station is None:
        _running.pop(trainer, None)
    else:
        _running[trainer] = station


def station_of(trainer: int, needed: bool = True) -> Station:
    """The station of a trainer; without a communicator the plain one, unless one is needed.

    Raises:
        ConfigError: no Communicator is running.
    """
    found = _running.get(trainer)
    if found is None and needed:
        raise ConfigError(
            f"this program leaves its receiving to a Communicator, and none is running for "
            f"trainer {trainer}",
            hint="start() the Communicator before training, and stop() it after the last step",
        )
    return found or PLAIN


def begun(trainer: int, scope: Scope | None = None) -> Scope | None:
    """The scope in which the trainer's startup program has run; given one, it is this."""
    if scope is not None:
        _begun[trainer] = scope
    return _begun.get(trainer)


def is_running(trainer: int, station: Station | None = None) -> bool:
    """Whether the trainer has a station, or this very one."""
    found = _running.get(trainer)
    return found is not None and station in (None, found)


def guard(trainer: int) -> AbstractContextManager[Any]:
    """Held while a program calls servers itself, so that its station does not do so meanwhile."""
    found = _running.get(trainer)
    return found.lock if found is not None else nullcontext()


def finish(trainer: int, link: Link | None, *, orderly: bool) -> None:
    """The trainer is done: send what its station still holds, unless it ends in an error."""
    station = _running.pop(trainer, None)
    if station is not None and link is not None and orderly:
        station.stop(link)


# -- receiving ---------------------------------------------------------------------------------
class Wanted:
    """The variables that the program receives, by server."""

    def __init__(self, routes: Iterable[r.Receive]) -> None:
        self.routes = tuple(routes)
        names: dict[str, list[str]] = {}
        for route in self.routes:
            for part in route.parts:
                names.setdefault(part.endpoint, []).append(part.name)
        self.names = {endpoint: tuple(dict.fromkeys(n)) for endpoint, n in names.items()}

    def deliver(
        self, found: Mapping[str, Mapping[str, Value]], put: Callable[[str, Value], None]
    ) -> None:
        """Give each variable its value, put together from its slices."""
        for route in self.routes:
            parts = [found[part.endpoint][part.name] for part in route.parts]
            put(route.parts[0].variable, parts[0] if len(parts) == 1 else np.concatenate(parts))


class Plain:
    """No communicator: gradients leave as they come, and the program receives by itself."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def push(self, link: Link, scope: Scope, address: Address, value: Value) -> None:
        link.push(*address, value)

    def barrier(self, link: Link, env: Any, route: r.Barrier) -> None:
        link.barrier(route.endpoints, route.strict)

    def initialise(self, link: Link, env: Any) -> None:
        pass

    def touched(self, link: Link, env: Any, ids: Mapping[str, list[Any]]) -> None:
        raise ConfigError("a geo program needs a Communicator in geo mode", hint=GEO_HINT)

    def stop(self, link: Link) -> None:
        pass


PLAIN = Plain()


class Direct(Plain):
    """Sync and half-async: gradients leave as they come, a barrier brings the parameters."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self._wanted = wanted

    def barrier(self, link: Link, env: Any, route: r.Barrier) -> None:
        super().barrier(link, env, route)
        asked = {**dict.fromkeys(route.endpoints, ()), **self._wanted.names}
        self._wanted.deliver(link.exchange(asked), env.set)


class Queued(Plain):
    """Async: gradients wait in queues, threads send them merged and receive parameters."""

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

    def push(self, link: Link, scope: Scope, address: Address, value: Value) -> None:
        self._scope = scope
        if not self._threads:
            self._start(link)
        self._queues.put(address, _own(value), self._settings.patience)

    def barrier(self, link: Link, env: Any, route: r.Barrier) -> None:
        raise ConfigError(
            "an asynchronous communicator takes no barrier",
            hint="this program is half-async: Communicator(program, 2)",
        )

    def stop(self, link: Link) -> None:
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
            self._pull(link)

    # -- threads ---------------------------------------------------------------------------
    def _start(self, link: Link) -> None:
        tasks = [self._send] + [self._receive] * self._settings.independent
        for task in tasks:
            thread = threading.Thread(target=self._guarded, args=(task, link), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, task: Callable[[Link], None], link: Link) -> None:
        try:
            task(link)
        except BiremeError as error:
            self._fail(error)
        except Exception as error:  # whoever puts or stops must hear of it, whatever it is
            self._fail(PeerError(f"the communicator failed: {error!r}"))

    def _fail(self, error: BiremeError) -> None:
        self._queues.fail(error)
        with self._pushed:
            self._stopped = True
            self._pushed.notify_all()

    def _send(self, link: Link) -> None:
        given = self._settings
        with ThreadPoolExecutor(given.threads, "merge") as pool:
            while batch := self._queues.take(given.merge, given.waits):
                values = list((pool.map if given.merge > 1 else map)(self._merged, batch.values()))
                with self.lock:
                    for address, value in zip(batch, values, strict=True):
                        link.push(*address, value)
                    link.exchange({endpoint: () for endpoint, _ in batch})
                self._count(link, max(map(len, batch.values())))

    def _merged(self, values: list[Value]) -> Value:
        given = self._settings
        return merge(values, mean=not given.sums, unite_rows=given.unite_rows)

    def _count(self, link: Link, pushes: int) -> None:
        with self._pushed:
            self._fresh += pushes
            self._pushed.notify_all()
            if self._settings.independent:  # or sending would run away from receiving
                self._pushed.wait_for(lambda: self._stopped or not self._due())
        if not self._settings.independent and self._fresh >= self._settings.pushes_per_pull:
            self._fresh = 0
            self._pull(link)

    def _receive(self, link: Link) -> None:
        while True:
            with self._pushed:
                self._pushed.wait_for(self._due)
                if self._stopped:
                    return
                self._fresh = 0
                self._pushed.notify_all()
            self._pull(link)

    def _due(self) -> bool:
        return self._stopped or self._fresh >= self._settings.pushes_per_pull

    def _pull(self, link: Link) -> None:
        scope = self._scope
        assert scope is not None
        with self.lock:
            found = link.exchange(self._wanted.names)
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
