"""What a trainer computes, step by step, on disk: recorded inside a user's process without edits.

A parent asks for it by the environment variable BIREME_RECORDING. A recording is a folder with
feeds (`feed-N`), parameters after each step (`values-N`, 0: before the first), or the last ones
(`values-last`), as numpy archives. A process can also be fed from recordings of others: with
their batches one below the other, it computes in one process what they computed together.
"""

import os
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bireme.arrays.namespaces import to_host
from bireme.arrays.random import adopt_seed
from bireme.arrays.values import LoDTensor, lengths_to_lod, lod_to_lengths
from bireme.errors import FeedError
from bireme.ir import Program
from bireme.runtime import step_hook
from bireme.runtime.scope import Scope

__all__ = [
    "IDS",
    "LAST",
    "VARIABLE",
    "Request",
    "Values",
    "follow_environment",
    "read_values",
    "steps_done",
]

VARIABLE = "BIREME_RECORDING"
LAST = "last"
IDS = "|ids"  # follows the name of a growing table

Values = dict[str, np.ndarray]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to record in `folder`, and what to be fed from."""

    folder: str
    steps: int = 0  # end in order after so many; 0: never
    each: bool = True  # values of every step, and feeds; otherwise the last values only
    replay: tuple[str, ...] = ()  # recordings of all trainers, whose feeds are joined
    seed: int = 0  # of programs that set none; 0: each process draws its own

    def environment(self) -> dict[str, str]:
        """The variables for a process that shall record this."""
        return {VARIABLE: msgspec.json.encode(self).decode()}


def follow_environment() -> None:
    """Record in this process, if its parent asks for it."""
    if text := os.environ.get(VARIABLE, ""):
        request = msgspec.json.decode(text, type=Request)
        if request.seed:
            adopt_seed(request.seed)
        step_hook.install(Recorder(request, _trainer()))


def _trainer() -> str:
    return f"trainer-{os.environ.get('PADDLE_TRAINER_ID', '') or '0'}"


class Recorder:
    """The hook of one trainer."""

    def __init__(self, request: Request, name: str) -> None:
        self._request = request
        self._folder = Path(request.folder) / name
        self._folder.mkdir(parents=True, exist_ok=True)
        self._steps = 0
        self._ids: dict[str, np.ndarray] = {}
        life = f"{os.getpid()}-{time.time_ns()}"  # a process that starts again in place has two
        progress = self._folder / f"steps-{life}"
        self._progress = os.open(progress, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    def before(self, program: Program, feed: Any, scope: Scope) -> Any:
        """Record the feed, or replace it by those of the recordings."""
        if self._steps == 0:
            self._begin(program, scope)
        if self._request.replay:
            feed = self._replayed(program)
        elif self._request.each:
            _write_feed(self._folder / f"feed-{self._steps + 1}.npz", feed)
        self._note_ids(feed)
        return feed

    def after(self, program: Program, scope: Scope, executor: step_hook.Closing) -> None:
        """Record the values; end the process in order after the last step asked for."""
        self._steps += 1
        if self._request.each:
            self._write(str(self._steps), program, scope)
        elif self._steps == 1:

            def write_last(error: BaseException | None) -> None:
                if error is None:
                    self._write(LAST, program, scope)

            executor.closers.append(write_last)
        os.pwrite(self._progress, struct.pack("<q", self._steps), 0)
        if self._steps == self._request.steps:
            raise SystemExit(0)

    def _begin(self, program: Program, scope: Scope) -> None:
        """Take the first recording's initial values: without a seed, each process draws others."""
        if self._request.replay:
            given = read_values(Path(self._request.replay[0]), 0)
            for name, value in given.items():
                cell = scope.find_var(name)
                if cell is not None and np.shape(cell.value) == value.shape:
                    cell.put(value)
        if self._request.each:
            self._write("0", program, scope)

    def _replayed(self, program: Program) -> dict[str, Any]:
        number = self._steps + 1
        paths = [Path(folder) / f"feed-{number}.npz" for folder in self._request.replay]
        parts = [_read_feed(path) for path in paths if path.exists()]
        if not parts:
            raise SystemExit(0)  # nobody came further
        declared = program.global_block().vars
        return {
            name: _joined(name, [part[name] for part in parts], declared.get(name))
            for name in parts[0]
        }

    def _note_ids(self, feed: Any) -> None:
        """Remember integers that were fed: rows of growing tables are compared by such ids."""
        for part in feed if isinstance(feed, list | tuple) else [feed]:
            for name, value in (part or {}).items():
                array = _plain(value)[0]
                if array.dtype.kind in "iu":
                    known = self._ids.get(name, np.zeros(0, np.int64))
                    self._ids[name] = np.union1d(known, array.reshape(-1).astype(np.int64))

    def _write(self, step: str, program: Program, scope: Scope) -> None:
        cells = {p.name: scope.find_var(p.name) for p in program.all_parameters()}
        values: Values = {}
        for name, cell in cells.items():
            values.update(self._value(name, None if cell is None else cell.value))
        _write_archive(self._folder / f"values-{step}.npz", values)

    def _value(self, name: str, held: Any) -> Values:
        """A parameter, or all rows of a table; of one that grows, the rows whose ids were fed, and
        beside them these ids.
        """
        if held is None:
            return {}
        if not hasattr(held, "rows"):
            return {name: to_host(held)}
        if held.shape[0] >= 0:
            return {name: np.asarray(held.rows(np.arange(held.shape[0])))}
        fed = [ids for ids in self._ids.values() if ids.size and ids[0] >= 0]
        ids = np.unique(np.concatenate(fed)) if fed else np.zeros(0, np.int64)
        return {name: np.asarray(held.rows(ids)), name + IDS: ids}


# -- feeds -------------------------------------------------------------------------------------
Plain = tuple[np.ndarray, list[list[int]]]


def _plain(value: Any) -> Plain:
    """A fed value as an array and the lengths of its sequences."""
    if isinstance(value, tuple) and len(value) == 2:
        return np.asarray(value[0]), [list(level) for level in value[1]]
    if isinstance(value, LoDTensor):
        return np.asarray(value), lod_to_lengths(value.offsets)
    return np.asarray(to_host(value) if hasattr(value, "dtype") else value), []


def _joined(name: str, parts: Sequence[Plain], declared: Any) -> Any:
    """Batches of several trainers as one.

    Raises:
        FeedError: the value has no batch dimension, and trainers fed different ones.
    """
    arrays = [array for array, _ in parts]
    shape = () if declared is None else declared.shape
    if not arrays[0].ndim or (shape and shape[0] not in (-1, None)):
        if all(np.array_equal(arrays[0], other) for other in arrays[1:]):
            return arrays[0]
        raise FeedError(
            f"feed {name!r} has no batch dimension and differs between trainers",
            hint="feed the same value on every trainer",
        )
    whole = np.concatenate(arrays)
    levels = [list(chain(*level)) for level in zip(*(lengths for _, lengths in parts), strict=True)]
    return LoDTensor(whole, lengths_to_lod(levels)) if levels else whole


def _write_feed(path: Path, feed: Any) -> None:
    parts = list(feed) if isinstance(feed, list | tuple) else [feed or {}]
    plain = {n: [_plain(part[n]) for part in parts] for n in parts[0]}
    flat: Values = {}
    for name, values in plain.items():
        flat[name] = np.concatenate([a for a, _ in values]) if len(values) > 1 else values[0][0]
        for depth, level in enumerate(zip(*(lengths for _, lengths in values), strict=True)):
            flat[f"{depth}|{name}"] = np.asarray([*chain(*level)], np.int64)
    _write_archive(path, flat)


def _read_feed(path: Path) -> dict[str, Plain]:
    flat = _read_archive(path)
    names = [name for name in flat if not _is_level(name, flat)]
    return {n: (flat[n], _levels(n, flat)) for n in names}


def _is_level(name: str, flat: Mapping[str, Any]) -> bool:
    depth, bar, rest = name.partition("|")
    return bool(bar) and depth.isdecimal() and rest in flat


def _levels(name: str, flat: Values) -> list[list[int]]:
    found: list[list[int]] = []
    while (level := flat.get(f"{len(found)}|{name}")) is not None:
        found.append(level.tolist())
    return found


# -- files -------------------------------------------------------------------------------------
def _write_archive(path: Path, values: Values) -> None:
    """Variables' names are entries' values, not entries' names, which numpy restricts."""
    draft = path.with_name(f".{path.name}")
    numbered = {f"v{i}": value for i, value in enumerate(values.values())}
    with draft.open("wb") as file:
        np.savez(file, names=np.array(list(values), dtype=str), **numbered)  # type: ignore[arg-type]
    draft.replace(path)


def _read_archive(path: Path) -> Values:
    with np.load(path) as archive:
        return {str(name): archive[f"v{i}"] for i, name in enumerate(archive["names"])}


def read_values(folder: Path, step: int | str) -> Values:
    """The parameters of a recording after a step; empty if that step was never made."""
    path = folder / f"values-{step}.npz"
    return _read_archive(path) if path.exists() else {}


def steps_done(folder: Path) -> int:
    """How many steps a trainer has made, in all of its lives."""
    data = [path.read_bytes() for path in folder.glob("steps-*")]
    return sum(struct.unpack("<q", each)[0] for each in data if len(each) == 8)
