"""What lies in a directory of checkpoints, complete or not, and how two checkpoints differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import ConfigError, FormatError
from bireme.paths import is_local, reported

from .checkpoint import (
    Checkpoint,
    folders_in,
    is_folder_name,
    missing_parts,
    newest_checkpoint,
    parts_of,
    step_and_run,
)
from .parts import Part

__all__ = [
    "Difference",
    "Listed",
    "checkpoint_at",
    "differences",
    "is_checkpoint",
    "listed",
    "look_at",
]


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint's folder. It can be resumed from if it has parts, none is missing and there is
    no `problem`; `size` is bytes of arrays, `saved` seconds since 1970, or 0.
    """

    folder: Path
    step: int
    run: int
    saved: float
    parts: tuple[Part, ...] = ()
    missing: tuple[str, ...] = ()
    problem: str = ""

    @property
    def size(self) -> int:
        return sum(part.head["size"] for part in self.parts)

    @property
    def state(self) -> str:
        if self.problem:
            return "damaged"
        return "complete" if self.parts and not self.missing else "incomplete"


def listed(root: Path) -> list[Listed]:
    """The checkpoints below a directory, newest first; arrays are not read.

    Raises:
        ConfigError: there is no such directory.
    """
    if not root.is_dir():
        raise ConfigError(
            f"there is no directory {root}", hint="name what FLAGS_checkpoint_dir names"
        )
    return [look_at(folder) for folder in folders_in(root)]


def look_at(folder: Path) -> Listed:
    """One checkpoint's folder."""
    step, run = step_and_run(folder)
    saved = _saved(folder)
    try:
        parts = parts_of(folder)
    except FormatError as error:
        return Listed(folder, step, run, saved, problem=error.message)
    return Listed(folder, step, run, saved, tuple(parts), tuple(missing_parts(parts)))


def _saved(folder: Path) -> float:
    """When a checkpoint's folder was last changed; 0 where its file system does not say."""
    try:
        with reported():
            return float(folder.stat().st_mtime)
    except OSError:
        return 0.0


def is_checkpoint(path: Path) -> bool:
    """Whether the path names one checkpoint, not a directory of them."""
    return is_folder_name((path.resolve() if is_local(path) else path).name)


def checkpoint_at(path: Path) -> Checkpoint:
    """A checkpoint by its folder, or the newest complete one below a directory; all of it is
    verified.

    Raises:
        ConfigError: there is none, or it is incomplete.
        FormatError: it is damaged.
    """
    if not is_checkpoint(path):
        found = newest_checkpoint(path)
        if found is None:
            raise ConfigError(
                f"there is no complete checkpoint in {path}",
                hint="`bireme checkpoint list` shows what is there",
            )
        return found
    if not path.is_dir():
        raise ConfigError(f"there is no checkpoint {path}")
    parts = parts_of(path)
    missing = missing_parts(parts)
    if missing or not parts:
        raise ConfigError(
            f"checkpoint {path.name} is incomplete: {', '.join(missing) or 'every part'} is missing"
        )
    return Checkpoint(path, parts)


# -- two of them -------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Difference:
    """A variable that differs: in `what`, with the largest difference of two values (NaN where
    they cannot be subtracted), in so many `places`.
    """

    name: str
    what: str
    largest: float = float("nan")
    places: int = 0


def differences(one: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    """How the variables of two checkpoints differ, bit for bit; by name."""
    names = set(one.names), set(other.names)
    for name in sorted(names[0] | names[1]):
        if name not in names[0] or name not in names[1]:
            yield Difference(name, f"only in the {'second' if name in names[1] else 'first'}")
        elif found := _difference(name, one, other):
            yield found


def _difference(name: str, one: Checkpoint, other: Checkpoint) -> Difference | None:
    if one.is_table(name) or other.is_table(name):
        (ids, a), (those, b) = _in_order(*one.rows(name)), _in_order(*other.rows(name))
        if not np.array_equal(ids, those):
            strange = len(np.setxor1d(ids, those))
            return Difference(name, f"{strange} rows are in one only", places=strange)
    else:
        a, b = one.read(name), other.read(name)
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return Difference(name, f"{a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}")
    if a.tobytes() == b.tobytes():
        return None
    equal = (a == b) | ((a != a) & (b != b))
    places = int(equal.size - np.count_nonzero(equal))
    with np.errstate(invalid="ignore", over="ignore"):
        largest = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return Difference(name, "values", float(np.max(largest, initial=0.0)), places)


def _in_order(ids: Array, rows: Array) -> tuple[Array, Array]:
    order = np.argsort(ids)
    return ids[order], rows[order]
