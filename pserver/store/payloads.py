"""Whether a payload is what the server's program expects, and how many bytes a trainer's question
touches. Looks at values, changes none.
"""

import math
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple
from weakref import WeakSet

import numpy as np

from bireme import flags
from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import ProtocolError
from bireme.ir import Program, VarType
from bireme.net import messages as m
from bireme.net.layouts import Layout, Value, describe
from bireme.runtime.scope import Scope

from ..journal.records import Round
from ..rules.server_spec import Settings
from .tables import ServedTable, Tables

__all__ = ["PayloadChecks", "Sizes"]

LINE = 64  # bytes of a line of the processor's cache


class Expected(NamedTuple):
    """A gradient as the server's program declares it; `table` is what it updates."""

    shape: tuple[int, ...]
    dtype: str
    rows: bool
    table: ServedTable | None


class PayloadChecks:
    """The checks of one server's program. A layout of dense gradients is looked at once."""

    def __init__(self, program: Program, settings: Settings, tables: Tables) -> None:
        self._program = program
        self._settings = settings
        self._tables = tables
        self._finite = bool(flags.get("rpc_check_nan_inf"))
        self._announced: WeakSet[Layout] = WeakSet()
        self._sound: WeakSet[Layout] = WeakSet()
        self._known: dict[str, Expected] = {}  # by the name on the wire

    # -- before there is memory for it -----------------------------------------------------
    def announce(self, message: m.Message, layout: Layout) -> None:
        """Look at the shapes and dtypes that a frame announces.

        Raises:
            ProtocolError: a gradient does not look as this server's program says.
        """
        if isinstance(message, m.Push) and layout not in self._announced:
            for tensor in layout.tensors:
                if other := self._other_shape(tensor):
                    raise ProtocolError(other, hint="all processes must run the same script")
            if layout.steady:
                self._announced.add(layout)

    def _other_shape(self, tensor: m.Tensor) -> str:
        gradient = self._known.get(tensor.name) or self._expected(tensor.name)
        if gradient is None or not gradient.shape:
            return ""  # the core refuses names that the server does not own
        at = 1 if tensor.rows >= 0 else 0
        if tensor.shape[at:] == gradient.shape[at:] and tensor.dtype == gradient.dtype:
            return ""
        return (
            f"'{tensor.name}' arrives as {tensor.dtype}{list(tensor.shape)}, "
            f"but this server's program says {gradient.dtype}{list(gradient.shape)}"
        )

    def _expected(self, name: str) -> Expected | None:
        """What the program says of a gradient; None if it has none of this name."""
        bound = self._settings.bound(name)
        var = self._program.global_block().vars.get(bound)
        if var is None:
            return None
        rows = var.type == VarType.SELECTED_ROWS
        found = Expected(tuple(var.shape), var.numpy_dtype, rows, self._table(bound))
        self._known[name] = found
        return found

    # -- once it has arrived ---------------------------------------------------------------
    def fault(self, trainer: int, values: Mapping[str, Value], layout: Layout | None = None) -> str:
        """What is wrong with a trainer's push, as a sentence; empty if nothing is."""
        finite = self._finite
        if layout is not None and layout in self._sound and not finite:
            return ""
        for name, value in values.items():
            if found := self._fault(name, value) or (finite and _not_finite(name, value)):
                return f"trainer {trainer} sent {found}"
        if layout is not None and layout.steady:
            self._sound.add(layout)
        return ""

    # -- from a record ---------------------------------------------------------------------
    def recorded(self, values: Mapping[str, Value], round_: Round) -> str:
        """Why this server cannot have recorded such a round, as a sentence; empty if it can."""
        gradients, blocks = self._settings.gradients, set(round_.blocks)
        if unknown := self._settings.unknown([*values, *round_.absent]):
            return f"this server owns no gradient '{unknown[0]}'"
        given = {*values, *round_.absent}
        needed = [name for name, block in gradients.items() if block in blocks]
        if missing := [name for name in needed if name not in given]:
            return f"round {round_.number} lacks the gradient '{missing[0]}'"
        if not blocks.issubset(self._settings.blocks):
            return f"round {round_.number} has run other blocks"
        shapes = (self._other_shape(tensor) for tensor in describe(values)[0].tensors)
        faults = (self._fault(name, value) for name, value in values.items())
        return next(filter(None, chain(shapes, faults)), "")

    def _fault(self, name: str, value: Value) -> str:
        gradient = self._known.get(name) or self._expected(name)
        if gradient is None:
            return ""
        if not isinstance(value, SelectedRows):
            return f"a dense gradient for '{name}', which takes rows" if gradient.rows else ""
        if not gradient.rows:
            return f"rows for '{name}', which is dense"
        return self._bad_row(name, np.asarray(value.rows), gradient)

    def _bad_row(self, name: str, ids: Array, gradient: Expected) -> str:
        if not ids.size:
            return ""
        low, high = int(ids.min()), int(ids.max())
        if low < 0:
            return f"row {low} of '{name}': row ids begin at 0"
        height, table = gradient.shape[0], gradient.table
        if 0 <= height <= high:
            return f"row {high} of '{name}', which has {height} rows"
        if table is not None and not bool((mine := table.owns(ids)).all()):
            return f"row {ids[~mine][0]} of '{name}', which lives at another server"
        return ""

    def _table(self, gradient: str) -> ServedTable | None:
        """The table that a gradient updates."""
        block = self._settings.gradients.get(gradient, -1)
        ops = self._program.block(block).ops if block >= 0 else []
        names = [name for op in ops if "Param" in op.input_names for name in op.input("Param")]
        return next((table for table in self._tables if table.name in names), None)


def _not_finite(name: str, value: Value) -> str:
    if isinstance(value, SelectedRows):
        array = np.asarray(value.value)
    else:
        array = np.asarray(value.array if isinstance(value, LoDTensor) else value)
    if not array.size or array.dtype.kind != "f":
        return ""
    sound = np.isfinite(array.min()) and np.isfinite(array.max())  # both pass NaN on
    return "" if sound else f"'{name}' with values that are not finite"


class Sizes:
    """The sizes of one server's variables."""

    def __init__(self, program: Program, scope: Scope, tables: Tables) -> None:
        self._program = program
        self._scope = scope
        self._tables = tables
        self._any_table = len(tables) > 0
        self._known: dict[tuple[str, ...], int] = {}
        self._widths: dict[str, int] = {}

    def cost(self, asked: Mapping[str, Value]) -> int:
        """Bytes touched to find and copy rows of tables, table -> ids: each row, and a line of the
        processor's cache for its id.
        """
        widths = self._widths
        return sum(
            [
                np.size(ids) * ((widths.get(table) or self._width(table)) + LINE)
                for table, ids in asked.items()
            ]
        )

    def _width(self, table: str) -> int:
        """Bytes of a table's row; 0 for what is no table, which is refused later."""
        var = self._program.global_block().vars.get(self._tables.named(table))
        if var is None:
            return 0
        width = abs(math.prod(var.shape[1:])) * np.dtype(var.numpy_dtype).itemsize
        self._widths[table] = width
        return width

    def total(self, names: tuple[str, ...]) -> int:
        """Bytes of these variables: of growing tables as they are, of others as declared."""
        size = self._known.get(names)
        if size is None:
            size = self._declared(names)
        return size + sum(map(self._grown, names)) if self._any_table else size

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
