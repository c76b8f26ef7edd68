"""What a server saves and loads: its slices, the optimizer's state, counters, rows of tables.

`capture` copies between two updates, `write` works on the copy in its own time. The program says
which rows of which variable a slice is (`bireme.slices`). The file knows programs and scopes;
`bireme.io` knows files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bireme import flags
from bireme.errors import FormatError
from bireme.io.checkpoint import Checkpoint, newest_checkpoint
from bireme.io.disk import Disk
from bireme.io.parts import Piece, write_part
from bireme.io.slices import Place, places_of
from bireme.io.variables import is_persistable
from bireme.ir import Program
from bireme.runtime.arrays import Array, to_host
from bireme.runtime.scope import Scope

from .tables import ServedTable, Tables

__all__ = ["Keeper"]


class Keeper:
    """One server's part of every checkpoint."""

    def __init__(self, program: Program, scope: Scope, tables: Tables) -> None:
        self._scope = scope
        self._tables = tables
        block = program.global_block()
        attrs = next((op.attrs for op in block.ops if op.type == "listen_and_serv"), {})
        self._index = max(0, int(attrs.get("pserver_id", 0)))
        self._slices = places_of(program)
        rows = {name for table in tables for name in table.variables}
        passing = rows | {text.rpartition(":")[0] for text in attrs.get("grad_to_block_id", ())}
        kept = [v.name for v in block.vars.values() if is_persistable(v)]
        kept += [name for name in self._slices if block.has_var(name)]
        self._names = [name for name in dict.fromkeys(kept) if name not in passing]

    @property
    def part(self) -> str:
        """The name of this server's part."""
        return f"server-{self._index}"

    # -- saving ----------------------------------------------------------------------------
    def capture(self) -> list[Piece]:
        """A copy of everything."""
        found = []
        for name in self._names:
            cell = self._scope.find_var(name)
            value = None if cell is None else cell.get()
            if isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__"):
                place = self._slices.get(name, Place(name))
                found.append(Piece(place.name, np.array(to_host(value)), place.begin, place.height))
        for table in self._tables:
            rows = table.read()
            found += [Piece(name, array, ids=rows.ids) for name, array in rows.arrays.items()]
        return found

    def write(
        self, folder: Path, head: Mapping[str, Any], pieces: list[Piece], disk: Disk | None = None
    ) -> int:
        """Write this server's part; its size in bytes."""
        disk = disk or Disk()
        disk.make(folder)
        return write_part(disk, folder / self.part, head, pieces)

    # -- loading ---------------------------------------------------------------------------
    def resume(self) -> Path | None:
        """Go on from the newest checkpoint under FLAGS_checkpoint_dir; where that is, if anywhere.

        Raises:
            FormatError: it is damaged, or another model's.
        """
        root = flags.get("checkpoint_dir")
        found = newest_checkpoint(root) if root else None
        if found is None:
            return None
        self.restore(found)
        return found.folder

    def restore(self, found: Checkpoint) -> None:
        """Take over what a checkpoint holds of this server's variables, however many servers saved
        it.

        Raises:
            FormatError: something is missing, or has another shape.
        """
        known = set(found.names)
        for name in self._names:
            place = self._slices.get(name, Place(name))
            value: Array = self._scope.var(name).get()
            if value is not None:
                self._scope.var(name).put(_fitting(found, place, np.shape(value)))
            elif place.name in known:  # what trainers saw, which nobody has seen here yet
                self._scope.var(name).put(np.array(found.read(place.name)))
        for table in self._tables:
            _restore_table(table, found)


def _fitting(found: Checkpoint, place: Place, shape: tuple[int, ...]) -> Array:
    array = found.read(place.name, place.begin, None if place.height is None else shape[0])
    if np.shape(array) != shape:
        raise FormatError(
            f"variable {place.name!r}: this server holds {list(shape)}, "
            f"the checkpoint {list(np.shape(array))}",
            tensor=place.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        )
    return np.array(array)


def _restore_table(table: ServedTable, found: Checkpoint) -> None:
    """The rows that live here, of all there are."""
    known = set(found.names)
    arrays = {}
    ids = np.empty(0, np.int64)
    for name in table.variables:
        if name == table.name or name in known:
            ids, rows = found.rows(name)
            arrays[name] = rows[table.owns(ids)]
    table.write(ids[table.owns(ids)], arrays)
