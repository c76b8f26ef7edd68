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
from bireme.arrays.namespaces import Array, to_host
from bireme.errors import FormatError, InvalidArgument
from bireme.io.checkpoint import Checkpoint, newest_checkpoint
from bireme.io.directory_lock import DirectoryLock
from bireme.io.disk import Disk
from bireme.io.parts import Part, Piece, write_part
from bireme.io.slices import Place, places_of
from bireme.io.variables import is_persistable
from bireme.ir import Program
from bireme.runtime.scope import Scope

from .tables import ServedTable, Tables

__all__ = ["Keeper"]


class Keeper:
    """One server's part of every checkpoint."""

    def __init__(self, program: Program, scope: Scope, tables: Tables) -> None:
        self.began: str | None = None  # name of the checkpoint that was resumed; "": there was none
        self.runs = 0  # updates that have led to the variables
        self._program = program
        self.lock: DirectoryLock | None = None  # of FLAGS_checkpoint_dir
        self._scope = scope
        self._tables = tables
        block = program.global_block()
        attrs = next((op.attrs for op in block.ops if op.type == "listen_and_serv"), {})
        self._index = max(0, int(attrs.get("bireme.server", attrs.get("pserver_id", 0))))
        self._slices = places_of(program)
        rows = {name for table in tables for name in table.variables}
        passing = rows | {text.rpartition(":")[0] for text in attrs.get("grad_to_block_id", ())}
        kept = [v.name for v in block.vars.values() if is_persistable(v)]
        kept += [name for name in self._slices if block.has_var(name)]
        self._names = [name for name in dict.fromkeys(kept) if name not in passing]
        self._begun = {name for name in self._names if scope.var(name).get() is not None}

    @property
    def part(self) -> str:
        """The name of this server's part."""
        return f"server-{self._index}"

    # -- saving ----------------------------------------------------------------------------
    @property
    def head(self) -> dict[str, Any]:
        """What belongs to a copy besides arrays."""
        return {"runs": self.runs}

    def capture(self) -> list[Piece]:
        """A copy of everything."""
        found = []
        for name in self._names:
            cell = self._scope.find_var(name)
            value = None if cell is None else cell.get()
            if isinstance(value, np.ndarray) or hasattr(value, "__cuda_array_interface__"):
                place = self._place(name)
                found.append(Piece(place.name, np.array(to_host(value)), place.begin, place.height))
        for table in self._tables:
            rows = table.read()
            found += [Piece(name, array, ids=rows.ids) for name, array in rows.arrays.items()]
        return found

    def write(
        self, folder: Path, head: Mapping[str, Any], pieces: list[Piece], disk: Disk | None = None
    ) -> int:
        """Write this server's part; its size in bytes.

        Raises:
            ConfigError: another process saves there.
            OSError: the disk refuses.
        """
        if self.lock is not None:
            self.lock.take()
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
        if root:
            self.began = found.folder.name if found is not None else ""
        if found is None:
            return None
        self.restore(found)
        return found.folder

    def restore_part(self, folder: Path) -> None:
        """Take over what this server alone has written to `folder`.

        Raises:
            FormatError: it is damaged, or another model's.
        """
        self.restore(Checkpoint(folder, [Part(folder)]))

    def restore(self, found: Checkpoint) -> None:
        """Take over what a checkpoint holds of this server's variables, however many servers saved
        it; nothing changes unless all of it fits. It must hold what begins with a value; what it
        does not hold besides, like the temporaries of a schedule, had none then and has none now.

        Raises:
            FormatError: something is missing, or has another shape or dtype.
        """
        known = set(found.names)
        fresh: dict[str, Array | None] = {}
        for name in self._names:
            place = self._place(name)
            if name in self._slices and place.name not in known:  # servers cut otherwise then
                place = self._slices[name]
            value: Array = self._scope.var(name).get()
            if place.name not in known and name not in self._begun:
                fresh[name] = None
            elif value is not None:
                fresh[name] = self._fitting(found, place, value)
            else:
                fresh[name] = found.read(place.name, near=self.part)
        tables = [(table, *_rows_of(table, found)) for table in self._tables]
        for name, array in fresh.items():
            self._scope.var(name).put(None if array is None else np.array(array))
        for table, ids, arrays in tables:
            table.write(ids, arrays)
        self.runs = self._program._runs_before = _runs(found)

    def _place(self, name: str) -> Place:
        """Where a variable lies in checkpoints: a copy of a whole, under its own name."""
        place = self._slices.get(name, Place(name))
        return Place(name) if place.height is None else place

    def _fitting(self, found: Checkpoint, place: Place, value: Array) -> Array:
        rows = None if place.height is None else len(value)
        if rows is not None and (height := found.height(place.name)) != place.height:
            saved = "a table of rows by id" if height is None else f"{height} rows"
            raise FormatError(
                f"variable {place.name!r} has {place.height} rows, and is saved as {saved}",
                tensor=place.name,
                where=str(found.folder),
                hint="load it with the model that saved it",
            )
        array = found.read(place.name, place.begin, rows, near=self.part)
        if (array.shape, array.dtype) == (value.shape, value.dtype):
            return array
        raise FormatError(
            f"variable {place.name!r}: this server holds {value.dtype}{list(value.shape)}, "
            f"the checkpoint {array.dtype}{list(array.shape)}",
            tensor=place.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        )


def _runs(found: Checkpoint) -> int:
    """Updates that have led to what servers saved; what a local program saved does not say."""
    heads = (part.head for name, part in found.parts.items() if not name.startswith("trainer-"))
    return max(int(head.get("runs", found.step)) for head in heads)


def _rows_of(table: ServedTable, found: Checkpoint) -> tuple[Array, dict[str, Array]]:
    """The rows that live here, of all there are.

    Raises:
        FormatError: they do not fit the table, or its variables have different rows.
    """
    known = set(found.names)
    ids, rows = found.rows(table.name)
    arrays = {table.name: rows[table.owns(ids)]}
    try:
        for name in table.variables[1:]:
            if name in known:
                others, rows = found.rows(name)
                if not np.array_equal(others, ids):
                    raise InvalidArgument(f"{name!r} holds other rows than {table.name!r}")
                arrays[name] = rows[table.owns(ids)]
        table.check(ids[table.owns(ids)], arrays)
    except InvalidArgument as problem:
        raise FormatError(
            f"table {table.name!r} of the checkpoint does not fit: {problem.message}",
            tensor=table.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        ) from None
    return ids[table.owns(ids)], arrays
