"""Tables that grow, on a trainer of geo-SGD: its own rows, and the rows as the servers held them.

A row begins alike on every trainer and server, so nothing is fetched before the first step, and a
row that nobody has touched need not exist anywhere.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array
from bireme.arrays.values import SelectedRows
from bireme.errors import ConfigError
from bireme.net.frames import Value

from .instructions import Part

__all__ = ["Grown", "ids_of", "within"]


def within(rows: Array, part: Part) -> Array:
    """The rows that lie at one server, as it numbers them: from its slice's beginning, or by
    their ids.
    """
    if part.every:
        return rows[rows % part.every == part.begin]
    return rows[(rows >= part.begin) & (rows < (part.end or 0))] - part.begin


class Grown:
    """What the servers held of one table."""

    def __init__(self, parts: Iterable[Part], local: object) -> None:
        self._parts = tuple(parts)
        self._seen = Table(self._parts[0].variable, _table(self._parts[0], local).recipe)

    def moves(self, rows: Array, local: object, trainers: Array) -> Iterator[tuple[Part, Value]]:
        """How far rows have moved, by server, divided by the number of trainers."""
        table = _table(self._parts[0], local)
        for part in self._parts:
            mine = within(rows, part)
            moved = (table.rows(mine) - self._seen.rows(mine)) / trainers
            some = moved.any(axis=1)
            if some.any():
                yield part, SelectedRows(mine[some], moved[some], -1)

    def adopt(self, rows: Array, fresh: Mapping[str, Mapping[str, Array]], local: object) -> None:
        """Go on from what the servers hold now."""
        for part in self._parts:
            mine = within(rows, part)
            if mine.size:
                values = np.asarray(fresh[part.endpoint][part.name])
                for table in (self._seen, _table(part, local)):
                    slots = table.index.add(mine)
                    table.values[slots] = values


def _table(part: Part, value: object) -> Table:
    if not isinstance(value, Table):
        raise ConfigError(
            f"table {part.variable!r} has not begun on this trainer",
            hint="run the startup program before the first step",
        )
    return value


def ids_of(part: Part, local: object) -> Array:
    """The rows that a trainer has of its own."""
    return np.array(_table(part, local).index.ids)
