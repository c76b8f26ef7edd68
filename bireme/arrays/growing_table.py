"""Tables that grow row by row: a row is created by its first update.

The initial value of a row is a pure function of its id, so lookups of missing rows return it
without creating them. Existing rows lie in an ordinary array; a parameter and its optimizer states
share one index. Kernels for tables are in `bireme.runtime.table_kernels`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument

from .growable import Room
from .namespaces import Array, to_host
from .row_index import Index
from .values import SelectedRows

__all__ = ["Recipe", "Table"]

_DRAWN = 1 << 12  # rows created at once


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """Initial rows: `draw(ids)` computes them; `height` bounds the ids unless it is -1."""

    draw: Callable[[Array], Array]
    height: int
    row: tuple[int, ...]
    dtype: Any


class Table:
    """A variable of rows by id."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name = name
        self.recipe = recipe
        self.index = Index()
        self._room = Room(recipe.row, recipe.dtype)
        self._filled = 0

    @property
    def array(self) -> Array:
        """The whole capacity, by slot."""
        return self._room.array

    @property
    def shape(self) -> tuple[int, ...]:
        """The declared shape; -1 rows grow without bound."""
        return (self.recipe.height, *self.recipe.row)

    @property
    def dtype(self) -> Any:
        return np.dtype(self.recipe.dtype)

    @property
    def base(self) -> "Table":
        """Always true, like a view: results must never be written over a table."""
        return self

    @property
    def nbytes(self) -> int:
        """Memory of the existing rows, without the index."""
        width = int(np.prod(self.recipe.row, dtype=np.int64))
        return self.index.count * width * int(self.dtype.itemsize)

    def __len__(self) -> int:
        """The number of existing rows."""
        return self.index.count

    def __repr__(self) -> str:
        return f"Table({self.name!r}, shape={list(self.shape)}, {len(self)} rows there)"

    # -- rows ------------------------------------------------------------------------------
    def rows(self, ids: Array) -> Array:
        """The rows of these ids, in the shape of the ids; creates no rows.

        Raises:
            InvalidArgument: an id is negative or beyond the declared rows.
        """
        flat = self.checked(ids)
        self.fill()
        slots = self.index.find(flat)
        missing = np.flatnonzero(slots < 0)
        if not missing.size:
            found = self.array[slots]
        elif missing.size == flat.size:
            found = self.recipe.draw(flat)
        else:
            found = self.array[slots]
            found[missing] = self.recipe.draw(flat[missing])
        return found.reshape(*np.shape(ids), *self.recipe.row)

    def checked(self, ids: Array) -> Array:
        """The ids as a flat int64 array.

        Raises:
            InvalidArgument: one cannot be an id of this table.
        """
        flat = np.asarray(to_host(ids)).reshape(-1)
        if flat.dtype.kind not in "iu":
            raise InvalidArgument(
                f"ids of table {self.name!r} are {flat.dtype}, not integers",
                hint="use layers.cast(ids, 'int64')",
            )
        flat = flat.astype(np.int64, copy=False)
        if flat.size and (flat.min() < 0 or 0 <= self.recipe.height <= flat.max()):
            bad = flat.min() if flat.min() < 0 else flat.max()
            raise InvalidArgument(
                f"id {bad} is not in table {self.name!r} of {_tall(self.recipe.height)}",
                hint="ids run from 0 to rows - 1: check the data",
            )
        return flat

    def fill(self) -> None:
        """Create rows for all ids of the index."""
        begin, end = self._filled, self.index.count
        if begin == end:
            return
        if end > len(self.array):
            self._room.grow(self.index.capacity, begin)
        for start in range(begin, end, _DRAWN):
            part = slice(start, min(start + _DRAWN, end))
            self.array[part] = self.recipe.draw(self.index.ids[part])
        self._filled = end

    def follow(self, other: "Table") -> None:
        """Share the index of `other`: both have rows for the same ids.

        Raises:
            InvalidArgument: both have rows already, and not the same.
        """
        if self.index is other.index:
            return
        if not np.array_equal(self.index.ids, other.index.ids[: len(self)]):
            raise InvalidArgument(
                f"tables {self.name!r} and {other.name!r} hold different rows",
                hint="run the startup program, or load both from one checkpoint",
            )
        self.fill()
        self.index = other.index

    @classmethod
    def of(cls, name: str, rows: SelectedRows) -> "Table":
        """A table of only these rows; every other id reads as zeros."""
        row, dtype = rows.value.shape[1:], rows.value.dtype

        def zeros(ids: Array) -> Array:
            return np.zeros((len(ids), *row), dtype)

        table = cls(name, Recipe(zeros, rows.height, row, dtype))
        table.restore(rows.rows, rows.value)
        return table

    @property
    def values(self) -> Array:
        """The existing rows, by slot; a writable view."""
        self.fill()
        return self.array[: self.index.count]

    # -- as a whole ------------------------------------------------------------------------
    def selected(self) -> SelectedRows:
        """Existing rows with their ids in ascending order."""
        order = np.argsort(self.index.ids)
        ids, values = self.index.ids[order], self.values[order]
        return SelectedRows(ids, values, self.recipe.height, ordered=True)

    def clear(self) -> None:
        """Remove all rows."""
        self.index, self._filled = Index(), 0
        self._room = Room(self.recipe.row, self.recipe.dtype)

    def check(self, ids: Array, values: Array) -> Array:
        """Check the arguments of `restore`; the ids as a flat int64 array."""
        flat = self.checked(ids)
        if np.shape(values) != (flat.size, *self.recipe.row) or values.dtype != self.dtype:
            raise InvalidArgument(
                f"{flat.size} rows of {values.dtype}{list(np.shape(values))} do not fit {self!r}"
            )
        if len(np.unique(flat)) != flat.size:
            raise InvalidArgument(f"rows for table {self.name!r} contain an id more than once")
        return flat

    def restore(self, ids: Array, values: Array) -> None:
        """Replace all rows by these.

        Raises:
            InvalidArgument: the values do not fit the table, or an id repeats; nothing has changed
                then.
        """
        flat = self.check(ids, values)
        self.clear()
        slots = self.index.add(flat)
        self._room.grow(self.index.capacity, 0)
        self.array[slots] = values
        self._filled = flat.size


def _tall(height: int) -> str:
    return "rows without bound" if height < 0 else f"{height} rows"
