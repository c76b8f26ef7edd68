"""Checkpoints: everything that training needs to go on, whoever saved it and whoever loads it.

    ROOT/step-000000000400-<run>/server-0/  server-1/  trainer-0/  ...

Every process writes its own part. A checkpoint counts when all parts are there that its parts
name; whatever a crash leaves behind is ignored and later swept away. Sliced variables are put
together by their rows, rows of tables by their ids, so any number of servers may load what any
number saved, and a program without servers too.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme.errors import FormatError, InvalidArgument
from bireme.ir import Program, VarType
from bireme.runtime.arrays import Array, to_host
from bireme.runtime.scope import Scope, global_scope
from bireme.runtime.tables import Table
from bireme.runtime.values import LoDTensor

from .disk import Disk
from .parts import Entry, Part, Piece, write_part
from .variables import is_persistable, plain

__all__ = [
    "Checkpoint",
    "folder_of",
    "load_checkpoint",
    "newest_checkpoint",
    "newest_step",
    "pieces_of",
    "prune",
    "save_checkpoint",
]

_NAME = re.compile(r"step-(\d{12})-([0-9a-f]{16})")
LOCAL = "local"


def folder_of(root: str | Path, step: int, run: int) -> Path:
    """Where the checkpoint of a step lies; `run` tells jobs apart, and later ones are larger."""
    return Path(root) / f"step-{step:012d}-{run:016x}"


class Checkpoint:
    """A complete checkpoint; every byte has been checked.

    Raises:
        FormatError: a file is damaged.
    """

    def __init__(self, folder: Path, parts: Sequence[Part]) -> None:
        self.folder = folder
        self.step = int(parts[0].head["step"])
        self.parts = {part.folder.name: part for part in parts}
        self._found: dict[str, list[tuple[Part, Entry]]] = {}
        for part in parts:
            part.check()
            for entry in part.entries:
                self._found.setdefault(entry.name, []).append((part, entry))

    @property
    def names(self) -> list[str]:
        """Every variable of which there is something."""
        return sorted(self._found)

    def state(self, part: str) -> Mapping[str, Any]:
        """What a part says beside its arrays; nothing if there is no such part."""
        return self.parts[part].head if part in self.parts else {}

    def is_table(self, name: str) -> bool:
        """Whether the variable was saved as rows with ids."""
        return self._entries(name)[0][1].ids is not None

    def read(self, name: str, begin: int = 0, rows: int | None = None) -> Array:
        """A variable, or `rows` of its rows from `begin` on.

        Raises:
            FormatError: it was not saved, or not all of these rows.
        """
        found = self._entries(name)
        if found[0][1].height is None and rows is None:
            return found[0][0].read(found[0][1])
        if found[0][1].height is None:
            return found[0][0].read(found[0][1])[begin : begin + (rows or 0)]
        end = begin + rows if rows is not None else found[0][1].height
        return self._joined(name, found, begin, end)

    def _joined(self, name: str, found: list[tuple[Part, Entry]], begin: int, end: int) -> Array:
        pieces, at = [], begin
        for part, entry in sorted(found, key=lambda each: each[1].begin):
            last = entry.begin + entry.shape[0]
            if entry.begin <= at < last:
                stop = min(last, end)
                pieces.append(part.read(entry)[at - entry.begin : stop - entry.begin])
                at = stop
        if at < end:
            raise FormatError(
                f"the checkpoint holds rows up to {at} of variable {name!r}, not up to {end}",
                tensor=name,
                where=str(self.folder),
                hint="was it saved by the same model?",
            )
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def rows(self, name: str) -> tuple[Array, Array]:
        """A table's ids and rows; of a variable that was saved as an array, all of its rows."""
        if not self.is_table(name):
            whole = self.read(name)
            return np.arange(len(whole), dtype=np.int64), whole
        found = self._entries(name)
        ids = [part.read(entry.ids) for part, entry in found if entry.ids is not None]
        return np.concatenate(ids), np.concatenate([part.read(entry) for part, entry in found])

    def _entries(self, name: str) -> list[tuple[Part, Entry]]:
        if name not in self._found:
            raise FormatError(
                f"the checkpoint does not hold variable {name!r}",
                tensor=name,
                where=str(self.folder),
                hint="was it saved by the same model and optimizer?",
            )
        return self._found[name]


# -- which one ---------------------------------------------------------------------------------
def newest_checkpoint(root: str | Path) -> Checkpoint | None:
    """The last complete checkpoint under `root`, if there is one.

    Raises:
        FormatError: it is damaged.
    """
    found = next(_complete(Path(root)), None)
    return None if found is None else Checkpoint(*found)


def newest_step(root: str | Path) -> int:
    """The step of the last complete checkpoint under `root`; 0 if there is none."""
    return next((int(parts[0].head["step"]) for _, parts in _complete(Path(root))), 0)


def _complete(root: Path, damaged: bool = True) -> Iterator[tuple[Path, list[Part]]]:
    """Folders with all of their parts, the newest first; without `damaged`, damage is passed by."""
    for folder in _folders(root):
        try:
            parts = [Part(f) for f in sorted(folder.iterdir()) if not f.name.startswith(".")]
        except FormatError:
            if damaged:
                raise
            continue
        names = {part.folder.name for part in parts}
        if parts and all(set(part.head["parts"]) <= names for part in parts):
            yield folder, parts


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((f for f in root.iterdir() if _NAME.fullmatch(f.name)), reverse=True)


def prune(root: str | Path, keep: int, disk: Disk | None = None) -> None:
    """Remove complete checkpoints but the newest `keep`, and what crashes left behind them."""
    # nobody asks for the old ones: that one of them is damaged must not end a job that saves
    kept = [folder for folder, _ in _complete(Path(root), damaged=False)][: max(1, keep)]
    if not kept:
        return
    for folder in _folders(Path(root)):
        if folder < kept[-1] or (folder < kept[0] and folder not in kept):
            away = folder.with_name(f".{folder.name}")
            (disk or Disk()).rename(folder, away)
    for away in Path(root).glob(".step-*"):
        (disk or Disk()).remove(away)


# -- programs ----------------------------------------------------------------------------------
def save_checkpoint(
    dirname: str | Path,
    main_program: Program | None = None,
    step: int = 0,
    readers: Iterable[Any] = (),
    scope: Scope | None = None,
    keep: int = 3,
    disk: Disk | None = None,
) -> Path:
    """Save everything of a program that outlives a run, and where its readers are.

    `readers` are loaders with `state_dict()`. The newest `keep` checkpoints stay. A crash at any
    moment leaves the one before loadable. For a program that was split for servers set
    FLAGS_checkpoint_dir instead: servers save by themselves.

    Raises:
        InvalidArgument: a variable has no value yet.
    """
    program, scope, disk = plain(main_program), scope or global_scope(), disk or Disk()
    folder = folder_of(dirname, step, time.time_ns())
    head = {
        "step": step,
        "parts": [LOCAL],
        "readers": [reader.state_dict() for reader in readers],
    }
    disk.make(folder)
    write_part(disk, folder / LOCAL, head, pieces_of(program, scope))
    disk.sync(folder.parent)
    prune(dirname, keep, disk)
    return folder


def pieces_of(program: Program, scope: Scope, without: Iterable[str] = ()) -> list[Piece]:
    """What a scope holds of a program's persistable variables."""
    hidden = set(without)
    names = sorted(v.name for v in program.list_vars() if is_persistable(v))
    return [_piece(scope, name) for name in dict.fromkeys(names) if name not in hidden]


def _piece(scope: Scope, name: str) -> Piece:
    cell = scope.find_var(name)
    value = None if cell is None else cell.get()
    if value is None:
        raise InvalidArgument(
            f"variable {name!r} has no value to save",
            hint="run the startup program first, in this scope",
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
    """Load the newest complete checkpoint; its step, or None if there is none.

    Whoever saved it, the variables that this program keeps get their values, and each of `readers`
    is put where the reader of the same place was. In a job with servers, which load by themselves,
    every trainer calls this after its startup program, with its number as `trainer`.

    Raises:
        FormatError: a file is damaged, holds other shapes than the program, or lacks the part with
            the readers' positions.
    """
    found = newest_checkpoint(dirname)
    if found is None:
        return None
    program, scope = plain(main_program), scope or global_scope()
    known = set(found.names)
    for var in {v.name: v for v in program.list_vars() if is_persistable(v)}.values():
        if var.name in known:
            _restore(found, var, scope)
        elif trainer is None:
            found.read(var.name)  # says that it is missing
    part = LOCAL if trainer is None else f"trainer-{trainer}"
    state = found.state(part)
    if readers and not state:
        raise FormatError(
            f"the checkpoint does not say where the readers of {part} were",
            where=str(found.folder),
            hint="load it without readers and choose where to begin, or remove this checkpoint",
        )
    for reader, position in zip(readers, state.get("readers", ()), strict=False):
        reader.load_state_dict(position)
    return found.step


def _restore(found: Checkpoint, var: Any, scope: Scope) -> None:
    cell = scope.var(var.name)
    if isinstance(cell.value, Table):
        cell.value.restore(*found.rows(var.name))
        return
    if found.is_table(var.name):
        if isinstance(cell.value, np.ndarray):  # rows that nobody has trained stay as they began
            ids, rows = found.rows(var.name)
            whole = np.array(cell.value)
            whole[ids] = rows
            cell.put(whole)
        return
    array = found.read(var.name)
    fits = len(array.shape) == len(var.shape) and all(
        w in (-1, n) for w, n in zip(var.shape, array.shape, strict=True)
    )
    if not fits or array.dtype.name != var.numpy_dtype or var.type == VarType.SELECTED_ROWS:
        raise FormatError(
            f"variable {var.name!r} is {var.numpy_dtype}{list(var.shape)} in the program, "
            f"but {array.dtype}{list(array.shape)} in the checkpoint",
            tensor=var.name,
            where=str(found.folder),
            hint="load it with the model that saved it",
        )
    cell.put(np.array(array))
