"""Geo-SGD on the trainer: it trains on its own, and every so many steps tells the servers how far
its parameters have moved.

    sent = (local - seen) / trainers;   local = seen = what the servers hold then

With one trainer that is plain local training, with several the servers hold the mean of where
they went. Of a sparse table only the touched rows travel.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import ConfigError
from bireme.ir.names import delta_name
from bireme.net.frames import Value
from bireme.runtime.scope import Scope

from . import instructions as i
from .geo_tables import Grown, ids_of, within
from .server_pool import ServerPool
from .strategies import Pushed, send_now

__all__ = ["Geo", "Tracked", "tracked"]

Get = Callable[[str], Any]
Put = Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A parameter and its slices at the servers; of a sparse one only touched rows travel."""

    name: str
    parts: tuple[i.Part, ...]
    sparse: bool

    @property
    def grows(self) -> bool:
        """Whether rows come into being on trainers and servers alike, by their ids."""
        return bool(self.parts and self.parts[0].every)


def tracked(vars_info: Mapping[str, Mapping[str, Sequence[str]]]) -> tuple[Tracked, ...]:
    """The transpiler's `vars_info`, read."""
    return tuple(_tracked(name, info) for name, info in vars_info.items())


def _tracked(name: str, info: Mapping[str, Sequence[str]]) -> Tracked:
    begin, parts = 0, []
    homes = list(zip(info["var_names"], info["sections"], info["epmap"], strict=True))
    if homes and int(homes[0][1]) < 0:  # a table that grows: every row where its id says
        by_id = (i.Part(name, e, at, k, None, len(homes)) for k, (at, _, e) in enumerate(homes))
        return Tracked(name, tuple(by_id), True)
    for slice_, rows, endpoint in homes:
        parts.append(i.Part(name, endpoint, slice_, begin, begin + int(rows)))
        begin += int(rows)
    return Tracked(name, tuple(parts), str(info["is_sparse"][0]) == "True")


class Geo:
    """The strategy of one trainer; every call comes from the thread that trains."""

    def __init__(self, variables: tuple[Tracked, ...], trainers: int, every: int) -> None:
        self.lock = threading.RLock()
        self._variables = variables
        self._trainers = np.float32(trainers)
        self._every = max(1, every)
        self._seen: dict[str, Array] = {}
        self._grown: dict[str, Grown] = {}
        self._rows: dict[str, list[Array]] = {}
        self._steps = 0
        self._told = 0  # of these steps
        self._scope: Scope | None = None

    def push(self, pool: ServerPool, scope: Scope, values: Pushed) -> None:
        raise ConfigError(
            "a geo communicator sends no gradients",
            hint="the program was split for another mode: use its Communicator mode",
        )

    def barrier(self, pool: ServerPool, env: Any, barrier: i.Barrier) -> None:
        raise ConfigError(
            "a geo communicator takes no barrier",
            hint="the program was split for another mode: use its Communicator mode",
        )

    def initialise(self, pool: ServerPool, env: Any) -> None:
        """Begin with what the servers hold."""
        self._scope = env.scope
        self._adopt_all(pool, env.set)

    def begin(self, pool: ServerPool, scope: Scope) -> None:
        """As `initialise`, where the startup program ran before the communicator was there."""
        self._scope = scope
        self._adopt_all(pool, lambda name, value: scope.var(name).put(value))

    def touched(self, pool: ServerPool, env: Any, ids: Mapping[str, list[Any]]) -> None:
        self._scope = env.scope
        if not self._seen:
            self._adopt_all(pool, env.set)
        for table, given in ids.items():
            self._rows.setdefault(table, []).extend(map(_flat, given))
        self._steps += 1
        if self._steps % self._every == 0:
            self._exchange(pool, env.get, env.set)

    def settle(self, pool: ServerPool, env: Any) -> None:
        """Tell the steps since the last exchange."""
        with self.lock:
            if self._told < self._steps:
                self._find_moved(env.get)
                self._exchange(pool, env.get, env.set)

    def stop(self, pool: ServerPool) -> None:
        """Tell the last steps, and take over what all have learnt."""
        scope = self._scope
        if scope is None:
            return

        def get(name: str) -> Any:
            cell = scope.find_var(name)
            return None if cell is None else cell.get()

        def put(name: str, value: Any) -> None:
            (scope.find_var(name) or scope.var(name)).put(value)

        if self._seen:
            self._find_moved(get)
            rows = self._push_all(pool, get)
            self._adopt_grown(pool, rows, get)
        self._adopt_all(pool, put)

    def _find_moved(self, get: Get) -> None:
        """Count every row of a table that has moved as touched: momentum moves others, too."""
        self._rows = {v.name: [self._moved(v, get(v.name))] for v in self._variables if v.sparse}

    def _moved(self, var: Tracked, held: Any) -> Array:
        if var.grows:
            return ids_of(var.parts[0], held)
        return np.flatnonzero((np.asarray(to_host(held)) != self._seen[var.name]).any(axis=1))

    # -- one exchange ----------------------------------------------------------------------
    def _exchange(self, pool: ServerPool, get: Get, put: Put) -> None:
        rows = self._push_all(pool, get)
        asked: dict[str, list[str]] = {}
        wanted: dict[str, dict[str, Value]] = {}
        for var in self._variables:
            for part in var.parts:
                if var.sparse:
                    mine = within(rows[var.name], part)
                    if mine.size:
                        wanted.setdefault(part.endpoint, {})[part.name] = mine
                else:
                    asked.setdefault(part.endpoint, []).append(part.name)
        found = pool.exchange({endpoint: tuple(names) for endpoint, names in asked.items()})
        fresh = pool.look_up(wanted) if wanted else {}
        for var in self._variables:
            if var.grows:
                self._grown[var.name].adopt(rows[var.name], fresh, get(var.name))
            elif var.sparse:
                self._adopt_rows(var, rows[var.name], fresh, get, put)
            else:
                self._adopt(var, found, put)

    def _push_all(self, pool: ServerPool, get: Get) -> dict[str, Array]:
        """Send how far everything has moved; the touched rows of every table."""
        rows = {v.name: self._touched_rows(v.name) for v in self._variables if v.sparse}
        self._rows.clear()
        self._told = self._steps
        values: dict[str, dict[str, Value]] = {}
        for var in self._variables:
            for part, moved in self._moves(var, rows.get(var.name), get(var.name)):
                values.setdefault(part.endpoint, {})[delta_name(part.name)] = moved
        send_now(pool, values)
        return rows

    def _moves(self, var: Tracked, rows: Array, held: Any) -> Iterator[tuple[i.Part, Value]]:
        """How far each slice of a parameter has moved, divided by the number of trainers."""
        if var.grows:
            grown = self._grown.setdefault(var.name, Grown(var.parts, held))
            yield from grown.moves(rows, held, self._trainers)
            return
        local, seen = np.asarray(to_host(held)), self._seen[var.name]
        for part in var.parts:
            if not var.sparse:
                here = slice(part.begin, part.end)
                yield part, (local[here] - seen[here]) / self._trainers
                continue
            mine = within(rows, part)
            moved = (local[mine + part.begin] - seen[mine + part.begin]) / self._trainers
            some = moved.any(axis=1)
            if some.any():
                height = int(part.end or 0) - part.begin
                yield part, SelectedRows(mine[some], moved[some], height)

    def _touched_rows(self, table: str) -> Array:
        given = self._rows.get(table)
        return np.unique(np.concatenate(given)) if given else np.empty(0, np.int64)

    # -- taking over what the servers hold -------------------------------------------------
    def _adopt_grown(self, pool: ServerPool, rows: Mapping[str, Array], get: Get) -> None:
        """Rows of tables that grow, once all pushes have taken effect."""
        grown = [v for v in self._variables if v.grows]
        wanted: dict[str, dict[str, Value]] = {}
        for part in (part for var in grown for part in var.parts):
            mine = within(rows[part.variable], part)
            if mine.size:
                wanted.setdefault(part.endpoint, {})[part.name] = mine
        pool.exchange({})
        fresh = pool.look_up(wanted) if wanted else {}
        for var in grown:
            self._grown[var.name].adopt(rows[var.name], fresh, get(var.name))

    def _adopt_all(self, pool: ServerPool, put: Put) -> None:
        asked: dict[str, list[str]] = {}
        arrays = [v for v in self._variables if not v.grows]  # rows that grow begin by themselves
        for part in (part for var in arrays for part in var.parts):
            asked.setdefault(part.endpoint, []).append(part.name)
        found = pool.exchange({endpoint: tuple(names) for endpoint, names in asked.items()})
        for var in arrays:
            self._adopt(var, found, put)

    def _adopt(self, var: Tracked, found: Mapping[str, Mapping[str, Any]], put: Put) -> None:
        parts = [np.asarray(found[part.endpoint][part.name]) for part in var.parts]
        self._seen[var.name] = np.concatenate(parts)
        put(var.name, self._seen[var.name].copy())

    def _adopt_rows(
        self, var: Tracked, rows: Array, fresh: Mapping[str, Mapping[str, Any]], get: Get, put: Put
    ) -> None:
        if not rows.size:
            return
        parts = [
            np.asarray(fresh[part.endpoint][part.name])
            for part in var.parts
            if within(rows, part).size
        ]
        values = np.concatenate(parts)
        self._seen[var.name][rows] = values
        local = np.array(to_host(get(var.name)))
        local[rows] = values
        put(var.name, local)


def _flat(ids: Any) -> Array:
    array = ids.array if isinstance(ids, LoDTensor) else ids
    return np.asarray(to_host(array)).reshape(-1).astype(np.int64)
