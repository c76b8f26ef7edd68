"""Loads a server's rows from files of whole variables."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.growing_table import Table
from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import FormatError, InvalidArgument
from bireme.ir import Program, Variable
from bireme.paths import file_of, path_of
from bireme.runtime.scope import Scope

from .files import read_bytes
from .streams import Reader

__all__ = ["Place", "is_server", "load_slices", "places_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """The rows of a variable that a slice holds; without a height, the whole variable or a copy."""

    name: str
    begin: int = 0
    height: int | None = None


def places_of(program: Program) -> dict[str, Place]:
    """The positions of a server's slices in their variables, from its `listen_and_serv`."""
    found = {}
    for op in program.global_block().ops:
        for text in op.attrs.get("bireme.slices", ()) if op.type == "listen_and_serv" else ():
            slice_, name, begin, height = text.rsplit(":", 3)
            found[slice_] = Place(name, int(begin), int(height) if int(height) >= 0 else None)
    return found


def is_server(program: Program) -> bool:
    """Whether this is a parameter server's program."""
    return any(op.type == "listen_and_serv" for op in program.global_block().ops)


def load_slices(
    dirname: str | Path, program: Program, variables: list[Variable], scope: Scope
) -> None:
    """Load a server's variables from files saved by a trainer or a single process.

    Slices require a file; other variables are loaded if there is one.

    Raises:
        FormatError: a file is missing, damaged, or holds other shapes.
    """
    places = places_of(program)
    values = [
        (var, _owned(program, value, scope.var(var.name).value))
        for var, value in _values(path_of(dirname), places, variables, scope)
    ]
    for var, value in values:
        cell = scope.var(var.name)
        if isinstance(value, SelectedRows) and isinstance(cell.value, Table):
            cell.value.restore(value.rows, value.value)
        elif not isinstance(value, SelectedRows):
            cell.put(value)


def _values(
    folder: Path, places: dict[str, Place], variables: list[Variable], scope: Scope
) -> Iterator[tuple[Variable, Any]]:
    for var in variables:
        place = places.get(var.name, Place(var.name))
        path = file_of(folder, place.name)
        if var.name not in places and not path.exists():
            continue
        reader = Reader(read_bytes(path, f"variable {place.name!r}"), str(path))
        if isinstance(scope.var(var.name).value, Table):
            yield var, reader.selected_rows(place.name)
        else:
            yield var, _cut(reader.tensor(place.name), place, var, path)
        reader.end()


def _cut(value: Any, place: Place, var: Variable, path: Path) -> Any:
    array = value.array if isinstance(value, LoDTensor) else value
    rows = len(array) if place.height is not None else None
    cut = array if place.height is None else array[place.begin : place.begin + var.shape[0]]
    if rows != place.height or cut.shape != tuple(var.shape) or cut.dtype.name != var.numpy_dtype:
        raise FormatError(
            f"variable {place.name!r}: this server wants {var.numpy_dtype}{list(var.shape)} of "
            f"{place.height} rows, the file holds {array.dtype}{list(array.shape)}",
            tensor=place.name,
            where=str(path),
            hint="load what the same model saved",
        )
    return np.array(cut)


def _owned(program: Program, value: Any, table: Any) -> Any:
    """Of rows by id, those that belong to this server; other values unchanged.

    Raises:
        FormatError: they do not fit the table.
    """
    if not isinstance(value, SelectedRows) or not isinstance(table, Table):
        return value
    mine = _mine(program, value)
    try:
        table.check(value.rows[mine], value.value[mine])
    except InvalidArgument as problem:
        raise FormatError(
            f"the file does not fit: {problem.message}",
            tensor=table.name,
            hint="load what the same model saved",
        ) from None
    return SelectedRows(value.rows[mine], value.value[mine], value.height)


def _mine(program: Program, rows: SelectedRows) -> Any:
    """Which rows by id belong to this server."""
    (op,) = [op for op in program.global_block().ops if op.type == "listen_and_serv"]
    servers = int(op.attrs.get("bireme.servers", 1))
    return np.asarray(rows.rows) % servers == int(op.attrs.get("pserver_id", 0))
