"""Checkpoints: everything needed to resume training.

    ROOT/step-000000000400-<run>/server-0/  server-1/  trainer-0/  ...

Every process writes its own part. A checkpoint is complete if all parts listed in its parts exist;
incomplete ones are ignored and deleted later. Sliced variables are joined by rows, tables by ids,
so the number of servers may change between saving and loading, and may be zero.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.paths import fresh, is_local, path_of, problem, reported

from .disk import Disk
from .manifest import Entry, clash
from .parts import Part, is_there, unlist

__all__ = [
    "Checkpoint",
    "checkpoint_named",
    "folder_of",
    "folders_in",
    "is_folder_name",
    "missing_parts",
    "newest_checkpoint",
    "newest_step",
    "outdated",
    "parts_of",
    "prune",
    "step_and_run",
]

_NAME = re.compile(r"step-(\d{12})-([0-9a-f]{16})")
_PART = re.compile(r"local|(server|trainer)-\d+")


def folder_of(root: str | Path, step: int, run: int) -> Path:
    """The folder of a step's checkpoint; `run` identifies the job's run, later runs have larger
    numbers.
    """
    return path_of(root) / f"step-{step:012d}-{run:016x}"


class Checkpoint:
    """A complete checkpoint, with all data verified.

    Raises:
        FormatError: a file is damaged, or two parts hold the same rows of a variable.
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
        for name, found in self._found.items():
            if fault := clash([part.held(entry) for part, entry in found]):
                raise self._refused(name, fault)
            if self.is_table(name):
                self._check_ids(name, found)

    def _check_ids(self, name: str, found: list[tuple[Part, Entry]]) -> None:
        """Check that no row is in two parts."""
        seen = np.empty(0, np.int64)
        for part, entry in found:
            ids = part.read(entry.ids) if entry.ids is not None else seen[:0]
            fresh = np.union1d(seen, ids)
            if (ids < 0).any():
                raise self._refused(name, f"{part.folder.name} gives a row the id {ids.min()}")
            if len(fresh) < len(seen) + len(ids):
                others = ", ".join(p.folder.name for p, _ in found)
                fault = f"{part.folder.name} holds ids that were there already (of {others})"
                raise self._refused(name, fault)
            seen = fresh

    def _refused(self, name: str, fault: str) -> FormatError:
        return FormatError(
            f"the parts of the checkpoint disagree on variable {name!r}: {fault}",
            tensor=name,
            where=str(self.folder),
            hint=f"remove {self.folder} to resume from the previous checkpoint",
        )

    @property
    def names(self) -> list[str]:
        """The names of all saved variables."""
        return sorted(self._found)

    def state(self, part: str) -> Mapping[str, Any]:
        """The state that a part holds besides arrays; empty if there is no such part."""
        return self.parts[part].head if part in self.parts else {}

    def is_table(self, name: str) -> bool:
        """Whether the variable was saved as rows with ids."""
        return self._entries(name)[0][1].ids is not None

    def height(self, name: str) -> int | None:
        """How many rows the whole variable has; None for a table."""
        entry = self._entries(name)[0][1]
        if entry.ids is not None or not entry.shape:
            return None
        return entry.shape[0] if entry.height is None else entry.height

    def read(
        self, name: str, begin: int = 0, rows: int | None = None, near: str | None = None
    ) -> Array:
        """A variable, or `rows` of its rows from `begin` on. If several parts hold the whole
        variable, it is read from the part `near` if possible.

        Raises:
            FormatError: it was not saved, or not all of these rows.
        """
        found = self._entries(name)
        height = found[0][1].height
        if height is not None:
            return self._joined(name, found, begin, height if rows is None else begin + rows)
        part, entry = next((f for f in found if f[0].folder.name == near), found[0])
        whole = part.read(entry)
        if rows is None:
            return whole
        if not entry.shape or begin + rows > entry.shape[0]:
            raise self._short(name, entry.shape[0] if entry.shape else 0, begin + rows)
        return whole[begin : begin + rows]

    def _joined(self, name: str, found: list[tuple[Part, Entry]], begin: int, end: int) -> Array:
        pieces, at = [], begin
        for part, entry in sorted(found, key=lambda each: each[1].begin):
            last = entry.begin + entry.shape[0]
            if entry.begin <= at < last:
                stop = min(last, end)
                pieces.append(part.read(entry)[at - entry.begin : stop - entry.begin])
                at = stop
        if at < end:
            raise self._short(name, at, end)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _short(self, name: str, at: int, end: int) -> FormatError:
        return FormatError(
            f"the checkpoint holds rows up to {at} of variable {name!r}, not up to {end}",
            tensor=name,
            where=str(self.folder),
            hint="was it saved by the same model?",
        )

    def rows(self, name: str) -> tuple[Array, Array]:
        """Ids and rows of a table; for a variable saved as an array, all of its rows."""
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
    """The latest complete checkpoint under `root`, or None.

    Raises:
        FormatError: it is damaged.
    """
    found = next(_complete(path_of(root)), None)
    return None if found is None else Checkpoint(*found)


def checkpoint_named(root: str | Path, name: str) -> Checkpoint | None:
    """The complete checkpoint of this name under `root`, or None.

    Raises:
        FormatError: it is damaged.
    """
    found = (each for each in _complete(path_of(root), damaged=False) if each[0].name == name)
    return next((Checkpoint(*each) for each in found), None)


def newest_step(root: str | Path) -> int:
    """The step of the latest complete checkpoint under `root`; 0 if there is none."""
    return next((int(parts[0].head["step"]) for _, parts in _complete(path_of(root))), 0)


def _complete(root: Path, damaged: bool = True) -> Iterator[tuple[Path, list[Part]]]:
    """Complete checkpoint folders, newest first; without `damaged`, damaged ones are skipped."""
    for folder in folders_in(root):
        try:
            parts = parts_of(folder)
            if parts and not missing_parts(parts):
                yield folder, parts
        except FormatError:
            if damaged and folder.exists():  # otherwise another process has pruned it meanwhile
                raise


def parts_of(folder: Path) -> list[Part]:
    """The parts that a checkpoint's folder holds.

    Raises:
        FormatError: one is damaged, or not of the step that the folder is named after.
    """
    inside = (each for each in _inside(folder) if _PART.fullmatch(each.name))
    parts = [Part(each) for each in inside if is_there(each)]
    step, _ = step_and_run(folder)
    for part in parts:
        if part.head["step"] != step:
            raise FormatError(
                f"part {part.folder.name} is of step {part.head['step']}, its checkpoint of {step}",
                where=str(part.folder),
                hint=f"remove {folder} to resume from the previous checkpoint",
            )
    return parts


def missing_parts(parts: Sequence[Part]) -> list[str]:
    """The parts that others list and that are not there."""
    names = {part.folder.name for part in parts}
    return sorted({name for part in parts for name in part.head["parts"]} - names)


def step_and_run(folder: Path) -> tuple[int, int]:
    """What `folder_of` was given."""
    _, step, run = folder.name.split("-")
    return int(step), int(run, 16)


def folders_in(root: Path) -> list[Path]:
    """Checkpoint folders, newest first; other entries are ignored."""
    try:
        with reported():
            if not fresh(root).is_dir():
                return []
    except OSError as error:
        raise _unlisted(root, error) from None
    return sorted((f for f in _inside(root) if is_folder_name(f.name)), reverse=True)


def is_folder_name(name: str) -> bool:
    """Whether `folder_of` gives such names."""
    return _NAME.fullmatch(name) is not None


def _inside(folder: Path) -> list[Path]:
    """The subdirectories of a directory, by name.

    Raises:
        FormatError: it cannot be read.
    """
    try:
        with reported():
            return sorted(f for f in folder.iterdir() if f.is_dir())
    except OSError as error:
        raise _unlisted(folder, error) from None


def _unlisted(folder: Path, error: OSError) -> FormatError:
    return FormatError(
        f"cannot list checkpoints: {problem(error)}",
        where=str(folder),
        hint="may this process read the directory?",
    )


def outdated(root: str | Path, keep: int) -> list[Path]:
    """All but the newest `keep` complete checkpoints, and incomplete ones older than those."""
    root = path_of(root)
    # damage in an old checkpoint must not end a job that saves a new one
    kept = [folder for folder, _ in _complete(root, damaged=False)][: max(1, keep)]
    if not kept:
        return []
    return [f for f in folders_in(root) if f < kept[0] and f not in kept]


def prune(root: str | Path, keep: int, disk: Disk | None = None) -> None:
    """Remove what is `outdated`."""
    root, disk = path_of(root), disk or Disk()
    old = outdated(root, keep)
    for folder in old:
        _discard(folder, disk)
    for away in root.glob(".step-*") if is_local(root) else ():
        disk.remove(away)


def _discard(folder: Path, disk: Disk) -> None:
    """Make a checkpoint absent before its files go one by one, or a reader would find damage."""
    if is_local(folder):
        disk.rename(folder, folder.with_name(f".{folder.name}"))
        return
    for part in _inside(folder):
        unlist(disk, part)
    disk.remove(folder)
