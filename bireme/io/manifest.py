"""The manifest of a part of a checkpoint: parsing and validation.

A checksum proves that a manifest is unchanged, not that it is correct: the type and range of every
field are checked before it is used. Does no I/O.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

__all__ = ["FORMAT", "Entry", "Held", "OtherFormat", "Untrue", "clash", "parsed"]

FORMAT = 1
LAST_STEP = 10**12 - 1  # digits available in the folder's name
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 "
    "complex64 complex128".split()
)
_DIMENSIONS = 32  # limit of NumPy


class Untrue(ValueError):
    """An invalid manifest."""


class OtherFormat(ValueError):
    """A manifest of another version of the format."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The manifest's entry for one array, or for the ids that precede it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    crc: int
    begin: int = 0
    height: int | None = None
    ids: "Entry | None" = field(default=None)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def plain(self) -> dict[str, Any]:
        """The entry as JSON-serialisable values."""
        found = {key: getattr(self, key) for key in self.__slots__ if key != "ids"}
        return found if self.ids is None else {**found, "ids": self.ids.plain()}


def parsed(text: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """The header of a manifest and its entries.

    Raises:
        OtherFormat: it is of another version.
        Untrue: a field is missing, or has a type or a value that none can have.
    """
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise Untrue("is not JSON") from None
    if not isinstance(said, dict):
        raise Untrue("is not a JSON object")
    if said.get("format") != FORMAT or type(said["format"]) is not int:
        raise OtherFormat(f"{said.get('format')!r}")
    size = _number(said, "size")
    _number(said, "step", LAST_STEP)
    _check_names(said.get("parts"))
    readers = said.get("readers", [])
    if not isinstance(readers, list) or not all(isinstance(r, dict) for r in readers):
        raise Untrue("does not say where its readers were")
    tensors = said.pop("tensors", None)
    if not isinstance(tensors, list):
        raise Untrue("has no list of tensors")
    return said, [_entry(each, size) for each in tensors]


def _number(said: dict[str, Any], key: str, most: int = (1 << 63) - 1) -> int:
    value = said.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise Untrue(f"gives {str(value)[:40]!r} for {key!r}, which must be a number from 0 on")
    return value


def _check_names(parts: Any) -> None:
    names = parts if isinstance(parts, list) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise Untrue("does not name the parts that make its checkpoint complete")


def _entry(said: Any, size: int, inner: bool = False) -> Entry:
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        raise Untrue("has a tensor without a name")
    name = said["name"]
    known = {key for key in Entry.__slots__ if not (inner and key == "ids")}
    if strange := set(said) - known:
        raise Untrue(f"says {sorted(strange)[0]!r} of tensor {name!r}, which means nothing")
    try:
        ids = _entry(said["ids"], size, inner=True) if said.get("ids") is not None else None
        found = Entry(
            name,
            _dtype(said.get("dtype")),
            _shape(said.get("shape")),
            _number(said, "at"),
            _number(said, "crc", 0xFFFFFFFF),
            _number({"begin": 0} | said, "begin"),
            None if said.get("height") is None else _number(said, "height"),
            ids,
        )
    except Untrue as problem:
        raise Untrue(f"{problem} (tensor {name!r})") from None
    _check_bounds(found, size)
    return found


def _dtype(said: Any) -> str:
    if not isinstance(said, str) or said not in _DTYPES:
        raise Untrue(f"names {str(said)[:40]!r} as a dtype")
    return said


def _shape(said: Any) -> tuple[int, ...]:
    numbers = said if isinstance(said, list) else [-1]
    if len(numbers) > _DIMENSIONS or not all(type(n) is int and n >= 0 for n in numbers):
        raise Untrue(f"names {str(said)[:40]!r} as a shape")
    return tuple(numbers)


def _check_bounds(entry: Entry, size: int) -> None:
    if entry.at + entry.nbytes > size:
        raise Untrue(f"places tensor {entry.name!r} beyond the end of the data")
    ids, rows = entry.ids, entry.shape[0] if entry.shape else None
    if entry.height is not None and (rows is None or entry.begin + rows > entry.height):
        raise Untrue(f"places rows of tensor {entry.name!r} beyond its {entry.height} rows")
    if entry.height is None and entry.begin:
        raise Untrue(f"says where all of tensor {entry.name!r} begins")
    if ids is not None and (ids.dtype, ids.shape) != ("int64", (rows,)):
        raise Untrue(f"does not give one id for each row of tensor {entry.name!r}")
    if ids is not None and entry.height is not None:
        raise Untrue(f"gives tensor {entry.name!r} both ids and a place")


# -- who holds what ----------------------------------------------------------------------------
class Held(NamedTuple):
    """A part's share of a variable: all of it, rows from `begin` on, or rows with ids."""

    part: str
    dtype: str
    shape: tuple[int, ...]
    begin: int = 0
    height: int | None = None
    by_id: bool = False

    @property
    def row(self) -> tuple[int, ...]:
        """The properties that must be equal in all parts."""
        return self.shape if self.height is None and not self.by_id else self.shape[1:]

    @property
    def end(self) -> int:
        return self.begin + self.shape[0]

    def __str__(self) -> str:
        if self.by_id:
            return f"rows by id in {self.part}"
        if self.height is None:
            return f"all of it in {self.part}"
        return f"rows {self.begin} to {self.end - 1} in {self.part}"


def clash(held: Sequence[Held]) -> str | None:
    """Why these cannot be pieces of one variable; None if they can.

    Several parts may each hold the whole variable, such as a schedule's counter on every server.
    """
    for one, other in _pairs(held):
        both = one.height is None and other.height is None and not one.by_id and not other.by_id
        if one.by_id != other.by_id or (one.height is None) != (other.height is None):
            return f"{one} and {other} overlap"
        if both and one.part == other.part:
            return f"{one.part} holds it twice"
        if (one.dtype, one.row, one.height) != (other.dtype, other.row, other.height):
            return f"{one} is {_kind(one)}, {other} is {_kind(other)}"
        if one.height is not None and other.begin < one.end:
            return f"{one} and {other} overlap"
    return None


def _pairs(held: Sequence[Held]) -> Iterable[tuple[Held, Held]]:
    """Adjacent pairs; rows are first sorted by position."""
    ordered = sorted(held, key=lambda each: (each.begin, each.part))
    return pairwise(ordered)


def _kind(held: Held) -> str:
    height = "" if held.height is None else f" of {held.height} rows"
    return f"{held.dtype}{list(held.row)}{height}"
