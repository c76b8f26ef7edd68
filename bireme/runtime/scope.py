"""Scopes: where variables live between runs. A scope maps names to cells and knows its parent.

This file knows values, not programs; who may write a cell is the plan's business.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .arrays import Array
from .values import Lod, LoDTensor, LoDTensorArray, SelectedRows

__all__ = ["Cell", "CellTensor", "Scope", "global_scope", "scope_guard"]


class Cell:
    """One variable's place: an array, SelectedRows, LoDTensorArray or any object; None if unset."""

    __slots__ = ("lod", "name", "value")

    def __init__(self, name: str) -> None:
        self.name = name
        self.value: Any = None
        self.lod: Lod = ()

    def put(self, value: Any) -> None:
        """Hold `value`; a LoDTensor is taken apart into its array and its LoD."""
        if isinstance(value, LoDTensor):
            self.value, self.lod = value.array, value.offsets
        else:
            self.value, self.lod = value, ()

    def get(self) -> Any:
        """The value as others pass it on: a LoDTensor where there is a LoD."""
        return LoDTensor(self.value, self.lod) if self.lod else self.value

    def get_tensor(self) -> "CellTensor":
        """A LoDTensor that reads and writes this cell."""
        return CellTensor(self)

    def get_lod_tensor_array(self) -> LoDTensorArray:
        if self.value is None:
            self.value = LoDTensorArray()
        array: LoDTensorArray = self.value
        return array

    def get_selected_rows(self) -> SelectedRows:
        rows: SelectedRows = self.value
        return rows

    def __repr__(self) -> str:
        return f"Cell({self.name!r}, {self.get()!r})"


class CellTensor(LoDTensor):
    """The tensor of a cell: what is set here is what programs read."""

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


class Scope:
    """Names to cells, with a parent that is asked when a name is not found here."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.kids: list[Scope] = []
        self.groups: dict[Any, Any] = {}  # flat memory that views in this scope's cells share
        self.erased = 0  # how often names were forgotten: cells found before may be stale
        self._cells: dict[str, Cell] = {}

    def var(self, name: str) -> Cell:
        """The cell `name` of this very scope, made if need be."""
        cell = self._cells.get(name)
        if cell is None:
            cell = self._cells[name] = Cell(name)
        return cell

    def find_var(self, name: str) -> Cell | None:
        """The cell `name` here or in the nearest ancestor that has it."""
        scope: Scope | None = self
        while scope is not None:
            cell = scope._cells.get(name)
            if cell is not None:
                return cell
            scope = scope.parent
        return None

    def erase(self, names: Iterable[str]) -> None:
        """Forget these names of this scope."""
        for name in names:
            self._cells.pop(name, None)
        self.erased += 1

    def local_var_names(self) -> list[str]:
        return list(self._cells)

    def new_scope(self) -> "Scope":
        """A child, kept until `drop_kids`."""
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
    """The scope that executors use when they are given none."""
    return _current


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `scope` the global one inside."""
    global _current
    old, _current = _current, scope
    try:
        yield
    finally:
        _current = old
