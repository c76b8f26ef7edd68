"""What runs beside the event loop: binding pushes, running the program's blocks, reading values
for the wire.

One thread calls `apply`, `snapshot`, `publish` and `look_up`, in the order in which the core
decided them, so no reader ever sees half an update. The file knows scopes and programs, and
decides nothing about when.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import ProtocolError, UnknownName
from bireme.ir import Program, VarType
from bireme.ir.names import (
    TRAINER_ID,
    backup_name,
    is_backup,
    is_counter,
    without_backup,
    without_slice,
)
from bireme.net import messages as m
from bireme.net.frames import WORTH_SHARING, Buffer, Take, frame, head_of
from bireme.net.layouts import Layout, Value
from bireme.net.memory import Place
from bireme.runtime.observe import observer
from bireme.runtime.scope import Cell, Scope

from ..journal.recorder import Recorder
from ..rules.events import Apply, Send, Shared
from ..rules.server_spec import Settings
from .checkpoints import Keeper
from .fusion import Fusion
from .gathered import SharedValues
from .payloads import PayloadChecks, Sizes
from .shards import shards
from .tables import Tables

__all__ = ["Updates"]

MAX_CACHED_PUSHES = 1024  # lists of names whose cells are remembered

Prepare = Callable[[int], Callable[[], None]]


class Updates:
    """A server's values. Payloads are kept under tickets until an update takes them."""

    def __init__(
        self, program: Program, settings: Settings, scope: Scope, prepare: Prepare
    ) -> None:
        self._program = program
        self._settings = settings
        self._scope = scope
        self._prepare = prepare
        self._prepared: dict[int, Callable[[], None]] = {}
        self._kept: dict[int, tuple[Mapping[str, Value], Layout | None]] = {}
        self._cells: dict[tuple[str, ...], list[Cell]] = {}  # of pushed gradients
        self._held_in: dict[str, Cell] = {}  # of what trainers ask for
        self._read: dict[tuple[str, ...], list[Cell]] = {}  # of what trainers ask for
        self._zeros: dict[str, Value] = {}
        self._fusion = Fusion(program, scope)
        self.tables = Tables(program, scope)
        self.checks = PayloadChecks(program, settings, self.tables)
        self.sizes = Sizes(program, scope, self.tables)
        self.shared_values = SharedValues()
        self.keeper = Keeper(program, scope, self.tables)
        variables = program.global_block().vars
        self._backups = [n for n in variables if is_backup(n)]
        self.recorder: Recorder | None = None  # where updates are recorded before they are answered

    # -- payloads, from the event loop -----------------------------------------------------
    def keep(self, ticket: int, values: Mapping[str, Value], layout: Layout | None = None) -> None:
        self._kept[ticket] = values, layout

    def discard(self, ticket: int) -> None:
        self._kept.pop(ticket, None)

    # -- updates, from the worker ----------------------------------------------------------
    def apply(self, update: Apply, slots: Mapping[str, Array] | None = None) -> None:
        """Run one update's blocks over the pushes that it names; new values of parameters may be
        written to `slots`. What is recorded is durable on return.
        """
        recorder = self.recorder
        recorded = None if recorder is None else recorder.round(update, self._pushed(update))
        self._apply(update, slots or {})
        self.keeper.runs += 1
        if recorded is not None:
            recorded.result()

    def _pushed(self, update: Apply) -> dict[str, Value]:
        """The gradients of an update by the program's names."""
        found: dict[str, Value] = {}
        for ticket in update.pushes:
            for name, value in self._kept[ticket][0].items():
                bound = self._settings.bound(name)
                adds = is_counter(bound) and bound in found
                found[bound] = found[bound] + value if adds else value
        return found

    def _apply(self, update: Apply, slots: Mapping[str, Array]) -> None:
        for ticket in update.pushes:
            self._take(self._kept.pop(ticket)[0])
        for name in update.absent:
            self._scope.var(name).put(self._zero(name))
        if self._settings.dc_asgd:
            self._scope.var(TRAINER_ID).put(np.array([update.trainer], np.int64))
            self._fill_backups()
        if observer() is not None:  # somebody wants to see every operator
            self._run(update.blocks)
            return
        for fused, blocks in self._fusion.runs(update.blocks):
            self._run(self._fusion.apply(blocks, slots) if fused else blocks)

    def _run(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._block(block)()

    def _take(self, values: Mapping[str, Value]) -> None:
        """Put a payload where the program reads it."""
        cells = self._cells.get(tuple(values))
        if cells is None:
            self._bind_all(values)
            return
        for cell, value in zip(cells, values.values(), strict=True):
            if isinstance(value, LoDTensor):
                cell.put(value)
            else:
                cell.value, cell.lod = value, ()

    def _bind_all(self, values: Mapping[str, Value]) -> None:
        """The same of names that were not pushed together before."""
        names = [self._settings.bound(name) for name in values]
        for name, value in zip(names, values.values(), strict=True):
            self._bind(name, value)
        if not any(is_counter(name) for name in names) and len(self._cells) < MAX_CACHED_PUSHES:
            self._cells[tuple(values)] = [self._scope.var(name) for name in names]

    def _bind(self, name: str, value: Value) -> None:
        cell = self._scope.var(name)
        if is_counter(name) and cell.value is not None:
            cell.put(to_host(cell.value) + value)  # trainers send increments of the step counter
        else:
            cell.put(value)

    def _zero(self, name: str) -> Value:
        """The gradient of a trainer that sent none: it adds nothing, the divisor stays."""
        if name not in self._zeros:
            var = self._program.global_block().var(name)
            if var.type == VarType.SELECTED_ROWS:
                empty = np.empty((0, *var.shape[1:]), var.numpy_dtype)
                self._zeros[name] = SelectedRows(np.empty(0, np.int64), empty, var.shape[0])
            else:
                self._zeros[name] = np.zeros(var.shape, var.numpy_dtype)
        return self._zeros[name]

    def _block(self, index: int) -> Callable[[], None]:
        run = self._prepared.get(index)
        if run is None:
            run = self._prepared[index] = self._prepare(index)
        return run

    def snapshot(self, trainer: int, names: Iterable[str]) -> None:
        """Keep the values that `trainer` is being sent: delay compensation needs them at its next
        push.
        """
        for name in names:
            backup = backup_name(name, trainer)
            if backup in self._backups:
                self._scope.var(backup).put(np.array(self.value(name)))

    def _fill_backups(self) -> None:
        """A trainer that has pulled nothing yet has seen the initial values."""
        for name in self._backups:
            if (cell := self._scope.var(name)).value is None:
                cell.put(np.array(self.value(without_backup(name))))

    # -- reading, from the worker ----------------------------------------------------------
    def renews(self, names: tuple[str, ...], blocks: Iterable[int]) -> bool:
        """Whether these blocks compute most of these variables anew, wherever they are told to."""
        values = {name: self.value(name) for name in names}
        if not all(type(value) is np.ndarray for value in values.values()):
            return False
        renewed = self._fusion.params(blocks)
        size = sum(int(value.nbytes) for value in values.values())
        moved = sum(int(value.nbytes) for name, value in values.items() if name in renewed)
        return size >= WORTH_SHARING and 2 * moved > size

    def announce(
        self, send: Send, layout: Layout, place: Place, arrays: Sequence[Array]
    ) -> list[Buffer]:
        """The frame of variables that lie in shared memory, once those that no update has written
        there are copied.
        """
        cells = self._cells_of(layout.names)
        for name, cell, array in zip(layout.names, cells, arrays, strict=True):
            if cell.value is not array:
                array[...] = self.value(name)
        return [head_of(m.Values(version=send.version, place=place), layout.encoded)]

    def _cells_of(self, names: tuple[str, ...]) -> list[Cell]:
        if names not in self._read:
            self._read[names] = [self._scope.var(name) for name in names]
        return self._read[names]

    def publish(self, send: Send, take: Take | None = None) -> list[Buffer]:
        """The frame that carries these variables, for everybody who asks. Without shared memory it
        is the arrays' own, which no update changes while somebody holds it.
        """
        values = {name: self.value(name) for name in send.names}
        return frame(m.Values(version=send.version), values, take)

    def look_up(
        self, asked: dict[str, Value], send: Send, take: Take | None = None
    ) -> list[Buffer]:
        """The frame with the rows of tables, table -> ids."""
        values = {table: self.rows(table, ids) for table, ids in asked.items()}
        return frame(m.Values(version=send.version), values, take)

    def together(self, shared: Shared) -> list[Buffer]:
        """The frame with what all trainers brought; see `SharedValues`."""
        return self.shared_values.frame(shared, self._brought)

    def _brought(self, shared: Shared) -> list[Mapping[str, Value]]:
        brought = [self._kept.pop(ticket)[0] for ticket in shared.tickets]
        if self.recorder is not None:
            values = {f"{i} {n}": v for i, each in enumerate(brought) for n, v in each.items()}
            self.recorder.gathered(shared.calls, values).result()
        return brought

    def rows(self, table: str, ids: Array) -> Array:
        """Rows of a table, in the order of `ids`."""
        name = self.tables.asked.get(table, table)
        array, flat = self._held(name), ids.reshape(-1)
        if isinstance(array, Table):
            return array.rows(flat)
        whole = flat.dtype.kind in "iu"
        if flat.size and not (whole and flat.min() >= 0 and flat.max() < len(array)):
            raise ProtocolError(f"a row id outside 0 to {len(array) - 1} was asked of '{name}'")
        return array[flat]

    def shards(self) -> Iterator[dict[str, Any]]:
        """What this server holds, with its bytes; see `shards`."""
        return shards(self._program, self._scope, self._settings.blocks, self.tables)

    def value(self, name: str) -> Value:
        """A variable's value on the host.

        Raises:
            UnknownName: this server holds no such variable.
        """
        value = self._held(name)
        if type(value) is np.ndarray:
            return value
        if isinstance(value, Table):
            return value.selected()
        return value if isinstance(value, SelectedRows | LoDTensor) else to_host(value)

    def held_of(self, variable: str) -> Value:
        """What this server holds of a variable: all of it, or its slice.

        Raises:
            UnknownName: it holds nothing of it.
        """
        slices = (n for n in self._program.global_block().vars if without_slice(n) == variable)
        named = variable if self._scope.find_var(variable) else next(slices, variable)
        return self.value(named)

    def _held(self, name: str) -> Any:
        cell = self._held_in.get(name) or self._scope.find_var(name)
        value: Any = None
        if cell is not None:
            value, self._held_in[name] = (cell.get() if cell.lod else cell.value), cell
        if value is None:
            known = self._program.global_block().vars
            raise UnknownName(
                f"server {self._settings.endpoint} holds no variable '{name}'",
                name=name,
                known=known,
            )
        return value
