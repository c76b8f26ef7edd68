"""Saves and loads checkpoints of a program: its variables and the positions of its readers.

Loading is all or nothing.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bireme import flags
from bireme.arrays.growing_table import Table
from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor
from bireme.errors import BiremeError, FormatError, InvalidArgument, UnsupportedError
from bireme.ir import Program, Variable, VarType
from bireme.paths import path_of
from bireme.recovery.resume_point import ResumePoint
from bireme.runtime.scope import Scope, global_scope

from .checkpoint import Checkpoint, checkpoint_named, folder_of, newest_checkpoint, prune
from .directory_lock import own
from .disk import Disk
from .manifest import LAST_STEP
from .parts import Piece, write_part
from .remote import is_remote, of_servers
from .variables import is_persistable, plain

__all__ = ["load_checkpoint", "pieces_of", "save_checkpoint"]

LOCAL = "local"


def save_checkpoint(
    dirname: str | Path,
    main_program: Program | None = None,
    step: int = 0,
    readers: Iterable[Any] = (),
    scope: Scope | None = None,
    keep: int = 3,
    disk: Disk | None = None,
) -> Path:
    """Save the whole state of a program and the positions of its readers.

    `readers` are loaders with `state_dict()`. The newest `keep` checkpoints are kept. A crash at
    any time leaves the previous checkpoint loadable. For a program split for servers set
    FLAGS_checkpoint_dir instead, so that servers save themselves.

    Raises:
        InvalidArgument: a variable has no value yet, or the step is no step.
        UnsupportedError: a variable lies at servers.
        ConfigError: another process saves to this directory.
    """
    if not 0 <= step <= LAST_STEP:
        raise InvalidArgument(
            f"step {step} cannot be saved", hint="count steps from 0 on", where="save_checkpoint"
        )
    program, scope, disk = plain(main_program), scope or global_scope(), disk or Disk()
    folder = folder_of(dirname, step, time.time_ns())
    head = {
        "step": step,
        "parts": [LOCAL],
        "readers": [reader.state_dict() for reader in readers],
        "runs": program._runs,
    }
    own(dirname, LOCAL, "a program that saves checkpoints")
    disk.make(folder)
    write_part(disk, folder / LOCAL, head, pieces_of(program, partial(_held, scope)))
    disk.sync(folder.parent)
    prune(dirname, keep, disk)
    return folder


def pieces_of(
    program: Program, held: Callable[[str], Any], without: Iterable[str] = ()
) -> list[Piece]:
    """A program's persistable variables, with values from `held` by name."""
    hidden = set(without)
    names = sorted(v.name for v in program.list_vars() if is_persistable(v))
    return [_piece(name, held(name)) for name in dict.fromkeys(names) if name not in hidden]


def _piece(name: str, value: Any) -> Piece:
    if value is None:
        raise InvalidArgument(
            f"variable {name!r} has no value to save",
            hint="run the startup program first, in this scope",
        )
    if is_remote(value):
        raise UnsupportedError(
            f"table {name!r} is on the servers, and only they can save it",
            hint="set FLAGS_checkpoint_dir: servers save their own state",
        )
    if isinstance(value, Table):
        rows = value.selected()
        return Piece(name, rows.value, ids=rows.rows)
    array = value.array if isinstance(value, LoDTensor) else value
    return Piece(name, np.array(to_host(array)))


def load_checkpoint(
    dirname: str | Path,
    main_program: Program | None = None,
    readers: Sequence[Any] = (),
    scope: Scope | None = None,
    trainer: int | None = None,
) -> int | None:
    """Load the latest complete checkpoint; returns its step, or None if there is none. A trainer
    that was killed and started again alone goes on where it was instead (FLAGS_durability=step).

    The program's own variables are loaded, whichever kind of job saved them, and each of `readers`
    continues where the reader at the same position was. In a job with servers, which load their own
    state, every trainer calls this after its startup program with its id as `trainer`. If it
    raises, no variable or reader has changed.

    Raises:
        FormatError: a file is damaged, holds other shapes than the program, or lacks the part with
            the readers' positions.
        InvalidArgument: a table has not begun: the startup program has not run in this scope.
    """
    program, scope = plain(main_program), scope or global_scope()
    resuming = scope.resuming(trainer)
    point = resuming.resume_points[trainer] if resuming and trainer is not None else None
    found = _found(dirname, point)
    record = point if point is not None and point.recorded else None
    newest = record or found
    if newest is None:
        return None
    served = of_servers(program)
    part = LOCAL if trainer is None else f"trainer-{trainer}"
    changes: list[Change] = []
    for var in {v.name: v for v in program.list_vars() if is_persistable(v)}.values():
        if var.name in served or is_remote(_held(scope, var.name)):
            continue
        source = next((each for each in (record, found) if each and var.name in each.names), None)
        if source is not None:
            changes.append(_restored(source, var, scope, part))
        elif trainer is None and found is not None:
            found.read(var.name)  # reports that it is missing
    _put_readers(newest, part, readers)
    for change in changes:
        change()
    program._runs = program._runs_before = newest.state(part).get("runs", program._runs_before)
    if resuming is not None and trainer is not None:
        resuming.resumed.add(trainer)
    return newest.step


def _found(dirname: str | Path, point: ResumePoint | None) -> Checkpoint | None:
    """The checkpoint that the trainer's servers have begun with, if that is known, and it is still
    there; else the newest.
    """
    root = flags.get("checkpoint_dir")
    elsewhere = not root or path_of(root).absolute() != path_of(dirname).absolute()
    if point is None or point.recorded or elsewhere:
        return newest_checkpoint(dirname)
    if point.source is None:
        return None
    return checkpoint_named(dirname, point.source.name) or newest_checkpoint(dirname)


Source = Checkpoint | ResumePoint
Change = Callable[[], None]  # sets one variable; everything that can fail was done before


def _held(scope: Scope, name: str) -> Any:
    cell = scope.find_var(name)
    return None if cell is None else cell.value


def _put_readers(found: Source, part: str, readers: Sequence[Any]) -> None:
    """Restore the positions of all readers, or of none."""
    places = found.state(part).get("readers", ())
    if len(places) < len(readers):
        raise FormatError(
            f"the checkpoint has no reader positions for {part}"
            if not places
            else f"the checkpoint has positions for {len(places)} readers of {part}, not "
            f"{len(readers)}",
            where=str(found.folder),
            hint="load it without readers and choose where to begin, or remove this checkpoint",
        )
    before: list[tuple[Any, Any]] = []
    try:
        for reader, place in zip(readers, places, strict=False):
            before.append((reader, reader.state_dict()))
            reader.load_state_dict(place)
    except Exception as error:  # readers are user code, with any kind of error
        for reader, place in before:
            reader.load_state_dict(place)
        cause = error.message if isinstance(error, BiremeError) else error
        raise FormatError(
            f"a reader of {part} cannot go on from {str(place)[:80]}: {cause}",
            where=str(found.folder),
            hint="load it with the readers that were saved, or without readers",
        ) from None


def _restored(found: Source, var: Variable, scope: Scope, part: str) -> Change:
    """A function that sets the variable, from this part if several hold all of it.

    Raises:
        FormatError: the checkpoint holds something that does not fit it.
    """
    cell = scope.var(var.name)
    if isinstance(cell.value, Table):
        table, (ids, rows) = cell.value, found.rows(var.name)
        _check_rows(found, table, ids, rows)
        return lambda: table.restore(ids, rows)
    whole = found.is_table(var.name)
    array = _over(found, var, cell.value) if whole else found.read(var.name, near=part)
    fits = len(array.shape) == len(var.shape) and all(
        w in (-1, n) for w, n in zip(var.shape, array.shape, strict=True)
    )
    if not fits or array.dtype.name != var.numpy_dtype or var.type == VarType.SELECTED_ROWS:
        raise _misfit(found, var, array)
    return lambda: cell.put(np.array(array))


def _misfit(found: Source, var: Variable, array: Array) -> FormatError:
    return FormatError(
        f"variable {var.name!r} is {var.numpy_dtype}{list(var.shape)} in the program, "
        f"but {array.dtype}{list(array.shape)} in the checkpoint",
        tensor=var.name,
        where=str(found.folder),
        hint="load it with the model that saved it",
    )


def _over(found: Source, var: Variable, value: Any) -> Array:
    """The variable with the saved rows replaced; other rows keep their initial values."""
    if value is None:
        raise InvalidArgument(
            f"table {var.name!r} is not initialized, and checkpoints hold only its trained rows",
            hint="run the startup program before load_checkpoint",
        )
    whole = np.array(to_host(value))
    ids, rows = found.rows(var.name)
    if rows.dtype != whole.dtype or rows.shape[1:] != whole.shape[1:]:
        raise _misfit(found, var, rows)
    if ids.size and ids.max() >= len(whole):
        raise FormatError(
            f"the checkpoint holds row {ids.max()} of variable {var.name!r}, which has "
            f"{len(whole)} rows in the program",
            tensor=var.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        )
    whole[ids] = rows
    return whole


def _check_rows(found: Source, table: Table, ids: Array, rows: Array) -> None:
    try:
        table.check(ids, rows)
    except InvalidArgument as problem:
        raise FormatError(
            f"the checkpoint does not fit: {problem.message}",
            tensor=table.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        ) from None
