"""Remote look-up: ids of many tables -> unique ids per server -> rows back in place; and
gradients of rows on their way back. Arrays in, arrays out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import InvalidArgument, ProtocolError
from bireme.net.frames import Value

from .instructions import LookUp, Part

__all__ = ["Question", "ask", "look_up", "merged", "part_of"]

# endpoint -> table -> ids, to endpoint -> table -> rows
AskServers = Callable[[dict[str, dict[str, Value]]], dict[str, dict[str, Value]]]


@dataclass(frozen=True, slots=True)
class Question:
    """One table's look-up, split: `wanted` holds the row ids for each shard, local to the shard."""

    route: LookUp
    ids: tuple[Value, ...]
    unique: Array
    place: Array  # where each id stands among the unique ones
    wanted: tuple[Array, ...]

    def requests(self) -> dict[str, dict[str, Array]]:
        """Endpoint -> table -> ids, for the shards that are asked anything."""
        found: dict[str, dict[str, Array]] = {}
        for shard, ids in zip(self.route.shards, self.wanted, strict=True):
            if ids.size:
                found.setdefault(shard.endpoint, {})[shard.name] = ids
        return found

    def answers(self, rows: Mapping[str, Mapping[str, Array]]) -> list[Value]:
        """The outputs, one for each ids variable, with its LoD."""
        parts = [
            rows[shard.endpoint][shard.name]
            for shard, ids in zip(self.route.shards, self.wanted, strict=True)
            if ids.size
        ]
        for part in parts:
            if self.route.width >= 0 and part.shape[1:] != (self.route.width,):
                raise ProtocolError(
                    f"rows of the table '{self.route.table}' arrive as {list(part.shape[1:])}, "
                    f"but this program's have {self.route.width} numbers",
                    hint="all processes must run the same script",
                )
        table = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self.route.padding >= 0:
            table = np.where(
                (self.unique == self.route.padding)[:, None], table.dtype.type(0), table
            )
        outputs, begin = [], 0
        for ids in self.ids:
            array = _array(ids)
            picked = table[self.place[begin : begin + array.size]]
            outputs.append(self._shaped(picked, ids))
            begin += array.size
        return outputs

    def _shaped(self, picked: Array, ids: Value) -> Value:
        shape = _array(ids).shape
        shape = shape[:-1] if self.route.squeeze and shape[-1:] == (1,) else shape
        picked = picked.reshape(*shape, picked.shape[-1])
        return LoDTensor(picked, ids.offsets) if isinstance(ids, LoDTensor) else picked


def ask(route: LookUp, get: Callable[[str], Value]) -> Question:
    """Split one look-up over the servers; there may be no ids at all.

    Raises:
        InvalidArgument: an id lies outside the table.
    """
    ids = tuple(get(name) for name in route.ids)
    flat = np.concatenate([_flat(value, route) for value in ids])
    unique, place = np.unique(flat, return_inverse=True)
    if not unique.size:
        unique = np.zeros(1, np.int64)  # any row: it tells width and element type
    _check(unique, route)
    place = place.reshape(-1)
    if route.shards[0].every:  # rows by id, not ranges
        unique, place, pieces = _scattered(unique, place, len(route.shards))
    else:
        cuts = np.searchsorted(unique, [shard.end or 0 for shard in route.shards[:-1]])
        ranges = zip(np.split(unique, cuts), route.shards, strict=True)
        pieces = tuple(piece - shard.begin for piece, shard in ranges)
    return Question(route, ids, unique, place, pieces)


def _scattered(unique: Array, place: Array, servers: int) -> tuple[Array, Array, tuple[Array, ...]]:
    """Ids put together by server: in that order, where each id of the look-up stands in it, and
    in pieces.
    """
    home = unique % servers
    order = np.argsort(home, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    unique = unique[order]
    ends = np.cumsum(np.bincount(home, minlength=servers))[:-1]
    return unique, rank[place], tuple(np.split(unique, ends))


def _check(unique: Array, route: LookUp) -> None:
    if unique[0] < 0 or 0 <= route.height <= unique[-1]:
        bad = unique[0] if unique[0] < 0 else unique[-1]
        size = f" of {route.height} rows" if route.height >= 0 else ""
        raise InvalidArgument(
            f"id {bad} is outside the table '{route.table}'{size}",
            where=f"ids: {', '.join(route.ids)}",
            hint="ids run from 0 to rows - 1: check the data",
        )


def _flat(value: Value, route: LookUp) -> Array:
    ids = _array(value).reshape(-1)
    if ids.dtype.kind not in "iu":
        raise InvalidArgument(
            f"ids for the table '{route.table}' are {ids.dtype}, not whole numbers",
            where=f"ids: {', '.join(route.ids)}",
            hint="use layers.cast(ids, 'int64')",
        )
    return ids.astype(np.int64, copy=False)


def _array(value: Value) -> Array:
    if type(value) is np.ndarray:
        return value
    return to_host(value.array if isinstance(value, LoDTensor) else value)


# -- gradients on their way --------------------------------------------------------------------
def merged(value: Value) -> Value:
    """A gradient as it travels: each row once."""
    if not isinstance(value, SelectedRows):
        return value
    if type(value.value) is not np.ndarray:
        value = SelectedRows(to_host(value.rows), to_host(value.value), value.height)
    return value.merged()


def part_of(value: Value, part: Part) -> Value:
    """The rows of a value that one server owns; in a slice their ids become relative to it."""
    if isinstance(value, SelectedRows) and part.every:
        mine = value.rows % part.every == part.begin
        return SelectedRows(value.rows[mine], value.value[mine], value.height)
    if part.end is None:
        return value
    if isinstance(value, SelectedRows):
        mine = (value.rows >= part.begin) & (value.rows < part.end)
        return SelectedRows(value.rows[mine] - part.begin, value.value[mine], part.end - part.begin)
    array = value.array if isinstance(value, LoDTensor) else value
    return array[part.begin : part.end]


def look_up(ask_servers: AskServers, env: Any, look_ups: list[LookUp]) -> None:
    """One round trip per server for all tables; a table that is asked twice needs another."""
    left = look_ups
    while left:
        batch = list({each.shards[0].name: each for each in reversed(left)}.values())[::-1]
        left = [each for each in left if each not in batch]
        questions = [ask(each, env.get) for each in batch]
        wanted: dict[str, dict[str, Value]] = {}
        for question in questions:
            for endpoint, asked in question.requests().items():
                wanted.setdefault(endpoint, {}).update(asked)
        rows = ask_servers(wanted)
        for question in questions:
            for name, value in zip(question.route.outputs, question.answers(rows), strict=True):
                env.set(name, value)
