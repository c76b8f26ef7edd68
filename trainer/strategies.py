"""Sending strategies: when a trainer's values leave for its servers, and when parameters come.

A strategy stands between a program's operators and the server pool. Without a communicator
gradients leave at once; a communicator may have them barriered, queued (`queued`), or replaced by
how far parameters have moved (`geo`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np

from bireme.errors import ConfigError
from bireme.net.frames import Value
from bireme.runtime.scope import Scope

from . import instructions as i
from .server_pool import ServerPool
from .values import size_of

__all__ = ["Barriered", "Immediate", "Pushed", "Strategy", "Wanted", "send_now"]

Pushed: TypeAlias = Mapping[str, Mapping[str, Value]]  # endpoint -> name on the wire -> value

SMALL = 64 << 10  # bytes: smaller values travel together
ENOUGH = 512 << 10  # bytes of small values that leave together

GEO_HINT = (
    "start one before training: fluid.communicator.Communicator(program, 3, "
    "{'push_vars': transpiler.vars_info, 'trainers': trainers, 'push_nums': steps}).start()"
)


class Strategy(Protocol):
    """What a program's operators call, on the thread that runs it. Whoever uses the pool holds
    the lock.
    """

    lock: threading.RLock

    def push(self, pool: ServerPool, scope: Scope, values: Pushed) -> None:
        """Gradients are ready."""

    def barrier(self, pool: ServerPool, env: Any, barrier: i.Barrier) -> None:
        """The step's gradients have all been pushed."""

    def initialise(self, pool: ServerPool, env: Any) -> None:
        """The startup program has run."""

    def touched(self, pool: ServerPool, env: Any, ids: Mapping[str, list[Any]]) -> None:
        """A step of local training is over; it touched these rows of these tables."""

    def settle(self, pool: ServerPool, env: Any) -> None:
        """See that servers have what this trainer has done so far; without the lock."""

    def stop(self, pool: ServerPool) -> None:
        """Send what is left and receive once more."""


class Wanted:
    """The variables that a program receives, by server."""

    def __init__(self, receives: Iterable[i.Receive]) -> None:
        self.receives = tuple(receives)
        names: dict[str, list[str]] = {}
        for receive in self.receives:
            for part in receive.parts:
                names.setdefault(part.endpoint, []).append(part.name)
        self.names = {endpoint: tuple(dict.fromkeys(n)) for endpoint, n in names.items()}

    def deliver(
        self, found: Mapping[str, Mapping[str, Value]], put: Callable[[str, Value], None]
    ) -> None:
        """Give each variable its value, put together from its slices."""
        for receive in self.receives:
            parts = [found[part.endpoint][part.name] for part in receive.parts]
            put(receive.parts[0].variable, parts[0] if len(parts) == 1 else np.concatenate(parts))


def send_now(pool: ServerPool, values: Pushed) -> None:
    """Send a large value as a message of its own; small ones to one server share messages. The
    order per server stays. This is where batches are cut.
    """
    for endpoint, named in values.items():
        sizes = [v.nbytes if type(v) is np.ndarray else size_of(v) for v in named.values()]
        if sum(sizes) < ENOUGH and max(sizes, default=0) < SMALL:
            pool.push(endpoint, named)
            continue
        for batch in _batches(named, sizes):
            pool.push(endpoint, batch)


def _batches(named: Mapping[str, Value], sizes: Iterable[int]) -> Iterator[dict[str, Value]]:
    small: dict[str, Value] = {}
    total = 0
    for (name, value), size in zip(named.items(), sizes, strict=True):
        if small and (size >= SMALL or total + size > ENOUGH):
            yield small
            small, total = {}, 0
        if size >= SMALL:
            yield {name: value}
        else:
            small[name] = value
            total += size
    if small:
        yield small


class Immediate:
    """No communicator: gradients leave as they come, and the program receives by itself."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def push(self, pool: ServerPool, scope: Scope, values: Pushed) -> None:
        send_now(pool, values)

    def barrier(self, pool: ServerPool, env: Any, barrier: i.Barrier) -> None:
        pool.barrier(barrier.endpoints, barrier.strict)

    def initialise(self, pool: ServerPool, env: Any) -> None:
        pass

    def touched(self, pool: ServerPool, env: Any, ids: Mapping[str, list[Any]]) -> None:
        raise ConfigError("a geo program needs a Communicator in geo mode", hint=GEO_HINT)

    def settle(self, pool: ServerPool, env: Any) -> None:
        pass

    def stop(self, pool: ServerPool) -> None:
        pass


class Barriered(Immediate):
    """Sync and half-async: gradients leave as they come, a barrier brings the parameters."""

    def __init__(self, wanted: Wanted) -> None:
        super().__init__()
        self._wanted = wanted

    def barrier(self, pool: ServerPool, env: Any, barrier: i.Barrier) -> None:
        super().barrier(pool, env, barrier)
        asked = {**dict.fromkeys(barrier.endpoints, ()), **self._wanted.names}
        self._wanted.deliver(pool.exchange(asked), env.set)
