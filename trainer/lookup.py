"""Remote look-up: ids of many tables -> unique ids per server -> rows back in place. Arrays in,
arrays out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bireme.errors import InvalidArgument
from bireme.rpc.codec import Value
from bireme.runtime.arrays import Array
from bireme.runtime.values import LoDTensor

from .routes import LookUp

__all__ = ["Question", "ask"]


@dataclass(frozen=True, slots=True)
class Question:
    """One table's look-up, split: `wanted` holds the row ids for each shard, local to the shard."""

    route: LookUp
    ids: tuple[Value, ...]
    unique: Array
    place: Array  # where each id stands among the unique ones
    wanted: tuple[Array, ...]

    def requests(self) -> dict[str, dict[str, Array]]:
        """Endpoint -> table -> ids; shards that are not asked anything still tell the width."""
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
    """Split one look-up over the servers.

    Raises:
        InvalidArgument: an id lies outside the table.
    """
    ids = tuple(get(name) for name in route.ids)
    flat = np.concatenate([_array(value).reshape(-1) for value in ids])
    unique, place = np.unique(flat, return_inverse=True)
    ends = [shard.end or 0 for shard in route.shards]
    if not unique.size:
        raise InvalidArgument(f"a look-up in '{route.shards[0].variable}' with no id at all")
    if unique[0] < 0 or unique[-1] >= ends[-1]:
        bad = unique[0] if unique[0] < 0 else unique[-1]
        raise InvalidArgument(
            f"id {bad} is outside the table '{route.shards[0].variable}' of {ends[-1]} rows",
            where=f"ids: {', '.join(route.ids)}",
        )
    cuts = np.searchsorted(unique, ends[:-1])
    pieces = np.split(unique, cuts)
    wanted = tuple(
        piece.astype(np.int64) - shard.begin
        for piece, shard in zip(pieces, route.shards, strict=True)
    )
    return Question(route, ids, unique, place.reshape(-1), wanted)


def _array(value: Value) -> Array:
    return value.array if isinstance(value, LoDTensor) else np.asarray(value)
