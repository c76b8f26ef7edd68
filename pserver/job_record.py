"""What a server records so that its successor can continue: the records, their bytes, and what
they add up to.

A server's variables are a function of the state at the begin of a log and of the rounds since. What
its core has to remember besides is little: who takes part, and which calls have taken effect. Both
are a fold over the records. No files, no sockets.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from bireme.errors import FormatError
from bireme.net.layouts import EMPTY, Value, describe, read_layout

from .events import Call

__all__ = [
    "Begin",
    "Gathered",
    "Joined",
    "Known",
    "KnownTrainer",
    "Left",
    "Record",
    "Round",
    "read_record",
    "written_record",
]


class KnownTrainer(msgspec.Struct, array_like=True):
    """A trainer: `next` is its first call that may not have taken effect."""

    number: int
    incarnation: int
    beats: bool = True
    left: bool = False
    next: int = 1


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first record of a log: everything that was known then. `base` is the folder that holds
    the variables, "" where the log before this one leads to them.
    """

    base: str
    version: int
    lives: tuple[int, ...]  # incarnations of this server so far, the present one last
    trainers: tuple[KnownTrainer, ...]
    seed: int  # of programs that set none


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trainer was welcomed."""

    trainer: int
    incarnation: int
    beats: bool


class Left(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trainer has finished."""

    trainer: int


class Round(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An update; the payload is its gradients. Of the sums in `summed` (named by their first term)
    it holds the result only; `absent` gradients are zero. `barriers` are the calls that ended it.
    """

    number: int
    blocks: tuple[int, ...]
    absent: tuple[str, ...]
    summed: tuple[str, ...]
    barriers: tuple[tuple[int, int, int], ...]


class Gathered(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What trainers have shared by these calls; the payload is keyed "<position> <name>"."""

    calls: tuple[tuple[int, int, int], ...]


Record: TypeAlias = Begin | Joined | Left | Round | Gathered

_SIZES = struct.Struct("<II")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def written_record(
    record: Record, values: Mapping[str, Value] | None = None
) -> list[bytes | memoryview]:
    """A record and its payload as buffers, which are the arrays' own memory."""
    header = _encode(record)
    if not values:
        return [_SIZES.pack(len(header), 0), header]
    layout, arrays = describe(values)
    sizes = _SIZES.pack(len(header), len(layout.encoded))
    return [sizes, header, layout.encoded, *layout.sections(arrays)]


def read_record(data: bytes) -> tuple[Record, dict[str, Value]]:
    """A record and its payload, in memory of its own.

    Raises:
        FormatError: another version of bireme wrote it.
    """
    length, described = _SIZES.unpack_from(data)
    middle = _SIZES.size + length
    at = middle + described
    try:
        record = _decode(data[_SIZES.size : middle])
    except msgspec.MsgspecError as error:
        raise FormatError(f"unknown record in a write-ahead log: {error}") from None
    layout = read_layout(data[middle:at]) if described else EMPTY
    memory = np.empty(layout.aligned_size, np.uint8)
    for run in layout.runs:
        memory[run.begin : run.begin + run.size] = np.frombuffer(data, np.uint8, run.size, at)
        at += run.size
    return record, layout.views(memory)


@dataclass(slots=True)
class Known:
    """What records add up to."""

    version: int = 0
    lives: tuple[int, ...] = ()
    trainers: dict[int, KnownTrainer] = field(default_factory=dict)
    gathered: tuple[tuple[Call, ...], dict[str, Value]] = ((), {})

    @classmethod
    def at(cls, begin: Begin) -> "Known":
        """What the first record of a log says."""
        return cls(begin.version, begin.lives, {t.number: t for t in begin.trainers})

    def add(self, record: Record, values: dict[str, Value]) -> None:
        """Take in the next record."""
        match record:
            case Joined():
                found = KnownTrainer(record.trainer, record.incarnation, record.beats)
                self.trainers.setdefault(record.trainer, found)
            case Left():
                self.trainers[record.trainer].left = True
            case Round():
                self.version += 1
                self._passed(record.barriers)
            case Gathered():
                self._passed(record.calls)
                self.gathered = tuple(Call(*call) for call in record.calls), values
            case Begin():
                self.lives = record.lives

    def _passed(self, calls: Iterable[tuple[int, int, int]]) -> None:
        for trainer, _, sequence in calls:
            self.trainers[trainer].next = sequence + 1
