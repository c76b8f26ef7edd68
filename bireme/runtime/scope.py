"""Scopes: variables that outlive a run. A scope maps names to cells and has a parent."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import Lod, LoDTensor, LoDTensorArray, SelectedRows
from bireme.recovery.resume_point import ResumePoint

__all__ = ["Cell", "CellRows", "CellTensor", "Scope", "global_scope", "scope_guard"]


class Cell:
    """The storage of one variable: an array, SelectedRows, LoDTensorArray or any object; None if
    unset.
    """

    __slots__ = ("lod", "name", "value")

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = None
        self.lod: Lod = ()

    def put(self, value: Any) -> None:
        """Store `value`; a LoDTensor is split into its array and its LoD."""
        if isinstance(value, LoDTensor):
            self.value, self.lod = value.array, value.offsets
        else:
            self.value, self.lod = value, ()

    def get(self) -> Any:
        """The value, as a LoDTensor if it has a LoD."""
        return LoDTensor(self.value, self.lod) if self.lod else self.value

    def get_tensor(self) -> "CellTensor":
        """A LoDTensor that reads and writes this cell."""
        return CellTensor(self)

    def get_lod_tensor_array(self) -> LoDTensorArray:
        if self.value is None:
            self.value = LoDTensorArray()
        array: LoDTensorArray = self.value
        return array

    def get_selected_rows(self) -> "CellRows":
        """Selected rows that read and write this cell, with Fluid's methods."""
        return CellRows(cell=self)

    def __repr__(self) -> str:
        return f"Cell({self.name!r}, {self.get()!r})"


class CellTensor(LoDTensor):
    """The tensor of a cell; programs read what is set here."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def array(self) -> Array:
        return self._cell.value

    @array.setter
    def array(self, value: Array) -> None:
        self._cell.value = value

    @property
    def offsets(self) -> Lod:
        return self._cell.lod

    @offsets.setter
    def offsets(self, value: Lod) -> None:
        self._cell.lod = value


class CellRows:
    """The selected rows of a cell: what is set here is what programs read.

    >>> rows = CellRows()
    >>> rows.set_height(10)
    >>> rows.set_rows([1, 7])
    >>> rows.get_tensor().set(np.ones((2, 3), "float32"))
    >>> rows.height(), rows.rows(), rows.get_tensor().shape()
    (10, [1, 7], [2, 3])
    >>> CellRows([4], 6).rows()
    [4]
    """

    def __init__(self, rows: Iterable[int] = (), height: int = 0, cell: Cell | None = None) -> None:
        self._cell = cell or Cell("")
        if self._cell.value is None:
            empty = np.zeros(0, np.int64), np.zeros((0, 1), np.float32)
            self._cell.value = SelectedRows(*empty, height=height)
            self.set_rows(rows)

    def height(self) -> int:
        """The number of rows of the whole matrix."""
        return int(self._cell.value.height)

    def set_height(self, height: int) -> None:
        self._cell.value.height = int(height)

    def rows(self) -> list[int]:
        """The ids of the stored rows, in the tensor's order."""
        return [int(row) for row in self._cell.value.rows]

    def set_rows(self, rows: Iterable[int]) -> None:
        held = self._cell.value  # never modified: it may be shared
        ids = np.asarray(list(rows), np.int64)
        self._cell.value = SelectedRows(ids, held.value, height=held.height)

    def get_tensor(self) -> "RowsTensor":
        """The rows' values, one line for each."""
        return RowsTensor(self._cell)

    def numel(self) -> int:
        """The number of elements."""
        return int(self._cell.value.value.size)

    def sync_index(self) -> None:
        """Does nothing: rows are found by their ids."""

    def __repr__(self) -> str:
        return repr(self._cell.value)


class RowsTensor(CellTensor):
    """The values of a cell's selected rows."""

    @property
    def array(self) -> Array:
        return self._cell.value.value

    @array.setter
    def array(self, value: Array) -> None:
        self._cell.value.value = value


class Scope:
    """Maps names to cells; names not found are looked up in the parent."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.kids: list[Scope] = []
        self.groups: dict[Any, Any] = {}  # flat memory of which cells of this scope hold views
        self.erased = 0  # how often names were erased: cells found before may be stale
        self.resume_points: dict[int, ResumePoint] = {}  # by trainer, whose programs run here
        self.resumed: set[int] = set()  # trainers that have loaded theirs
        self._cells: dict[str, Cell] = {}

    def var(self, name: str) -> Cell:
        """The cell `name` of this scope itself, created if missing."""
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = Cell(name)
        return cell

    def find_var(self, name: str) -> Cell | None:
        """The cell `name` of this scope or its nearest ancestor."""
        scope: Scope | None = self
        while scope is not None:
            cell = scope._cells.get(name)
            if cell is not None:
                return cell
            scope = scope.parent
        return None

    def resuming(self, trainer: int | None) -> "Scope | None":
        """This scope or its nearest ancestor in which the trainer has a resume point."""
        scope: Scope | None = self
        while scope is not None and trainer not in scope.resume_points:
            scope = scope.parent
        return scope

    def erase(self, names: Iterable[str]) -> None:
        """Erase these names from this scope."""
        for name in names:
            self._cells.pop(name, None)
        self.erased += 1

    def local_var_names(self) -> list[str]:
        return list(self._cells)

    def new_scope(self) -> "Scope":
        """A child scope, kept until `drop_kids`."""
        kid = Scope(self)
        self.kids.append(kid)
        return kid

    def drop_kids(self) -> None:
        self.kids.clear()

    def __contains__(self, name: str) -> bool:
        return self.find_var(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)


_current = Scope()


def global_scope() -> Scope:
    """The default scope of executors."""
    return _current


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the global scope inside the block."""
    global _current
    old, _current = _current, scope
    try:
        yield
    finally:
        _current = old
