"""What a server records so that its successor can continue: the records, their bytes, and what
they add up to.

A server's variables are a function of the state at the begin of a log and of the rounds since. What
its core has to remember besides is little: who takes part, and which calls have taken effect. Both
are a fold over the records. No files, no sockets.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from bireme.errors import FormatError
from bireme.net.layouts import Value
from bireme.net.membership import UNTOLD, JobSize
from bireme.net.records import packed, unpacked

from ..rules.events import Call

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
    size: JobSize = UNTOLD  # of the job, and which server wrote it


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A trainer was welcomed, or another life of it."""

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

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def written_record(
    record: Record, values: Mapping[str, Value] | None = None
) -> list[bytes | memoryview]:
    """A record and its payload as buffers, which are the arrays' own memory."""
    return packed(_encode(record), values)


def read_record(data: bytes) -> tuple[Record, dict[str, Value]]:
    """A record and its payload, in memory of its own.

    Raises:
        FormatError: it is none; another version of bireme may have written it.
    """
    header, values = unpacked(data)
    try:
        return _decode(header), values
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"unknown record in a write-ahead log: {error}") from None


@dataclass(slots=True)
class Known:
    """What records add up to."""

    version: int = 0
    lives: tuple[int, ...] = ()
    trainers: dict[int, KnownTrainer] = field(default_factory=dict)
    gathered: tuple[tuple[Call, ...], dict[str, Value]] = ((), {})
    end: str = ""  # the file that they end with, and whether all of it could be read

    @classmethod
    def at(cls, begin: Begin) -> "Known":
        """What the first record of a log says."""
        return cls(begin.version, begin.lives, {t.number: t for t in begin.trainers})

    def add(self, record: Record, values: dict[str, Value]) -> None:
        """Take in the next record.

        Raises:
            FormatError: it does not follow those before it: of another round, of another server, of
                a trainer that has not joined.
        """
        match record:
            case Joined():
                known = self.trainers.get(record.trainer)
                if known is None or known.incarnation != record.incarnation:
                    found = KnownTrainer(record.trainer, record.incarnation, record.beats)
                    self.trainers[record.trainer] = found
            case Left():
                self._trainer(record.trainer).left = True
            case Round():
                if record.number != self.version + 1:
                    raise FormatError(f"round {record.number} follows round {self.version}")
                self.version += 1
                self._passed(record.barriers)
            case Gathered():
                self._passed(record.calls)
                self.gathered = tuple(Call(*call) for call in record.calls), values
            case Begin():
                if record.lives[: len(self.lives)] != self.lives:
                    raise FormatError("it was written by another server than the logs before it")
                self.lives = record.lives

    def _passed(self, calls: Iterable[tuple[int, int, int]]) -> None:
        for trainer, incarnation, sequence in calls:
            known = self._trainer(trainer)
            if known.incarnation == incarnation:  # not a former life's
                known.next = max(known.next, sequence + 1)

    def _trainer(self, number: int) -> KnownTrainer:
        if number not in self.trainers:
            raise FormatError(f"record of trainer {number}, which has not joined")
        return self.trainers[number]
