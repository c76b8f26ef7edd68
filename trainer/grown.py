"""Tables that grow, on a trainer of geo-SGD: its own rows, and the rows as the servers held them.

A row begins alike on every trainer and server, so nothing is fetched before the first step, and a
row that nobody has touched need not exist anywhere.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from bireme.errors import ConfigError
from bireme.runtime.arrays import Array
from bireme.runtime.tables import Table
from bireme.runtime.values import SelectedRows

from .link import Link
from .routes import Part

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

    def push(self, link: Link, rows: Array, local: object, trainers: Array) -> None:
        """Tell the servers how far rows have moved."""
        table = _table(self._parts[0], local)
        for part in self._parts:
            mine = within(rows, part)
            moved = (table.rows(mine) - self._seen.rows(mine)) / trainers
            some = moved.any(axis=1)
            if some.any():
                value = SelectedRows(mine[some], moved[some], -1)
                link.push(part.endpoint, f"{part.name}.delta", value)

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
