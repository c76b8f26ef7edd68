"""How many bytes a trainer's question touches, by which the core decides where it is answered."""

import math
from collections.abc import Mapping

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.ir import Program
from bireme.net.layouts import Value
from bireme.runtime.scope import Scope

from .tables import Tables

__all__ = ["Sizes"]

LINE = 64  # bytes of a line of the processor's cache


class Sizes:
    """The sizes of one server's variables."""

    def __init__(self, program: Program, scope: Scope, tables: Tables) -> None:
        self._program = program
        self._scope = scope
        self._tables = tables
        self._known: dict[tuple[str, ...], int] = {}

    def cost(self, asked: Mapping[str, Value]) -> int:
        """Bytes touched to find and copy rows of tables, table -> ids: each row, and a line of the
        processor's cache for its id.
        """
        return sum(np.size(ids) * (self._width(table) + LINE) for table, ids in asked.items())

    def _width(self, table: str) -> int:
        """Bytes of a table's row; 0 for what is no table, which is refused later."""
        var = self._program.global_block().vars.get(self._tables.named(table))
        return (
            0 if var is None else abs(math.prod(var.shape[1:])) * np.dtype(var.numpy_dtype).itemsize
        )

    def total(self, names: tuple[str, ...]) -> int:
        """Bytes of these variables: of growing tables as they are, of others as declared."""
        return self._declared(names) + sum(self._grown(n) for n in names if len(self._tables))

    def _grown(self, name: str) -> int:
        cell = self._scope.find_var(name)
        return cell.value.nbytes if cell is not None and isinstance(cell.value, Table) else 0

    def _declared(self, names: tuple[str, ...]) -> int:
        if names not in self._known:
            known = self._program.global_block().vars
            shapes = [(v.shape, v.numpy_dtype) for n in names if (v := known.get(n)) is not None]
            sizes = [max(0, math.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes]
            self._known[names] = sum(sizes)
        return self._known[names]
