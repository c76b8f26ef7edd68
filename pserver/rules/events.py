"""What the core of a server hears and what it says: events in, instructions out.

A trainer's message arrives as it came over the wire (`Arrived`). A `ticket` is the shell's number
for one waiting call, and for the payload that came with it; a `Call` names a counted call of a
trainer, so that its repeat is recognised. Nothing here holds an array.
"""

from typing import NamedTuple, TypeAlias

import msgspec

from bireme.net import messages as m

__all__ = [
    "NO_CALL",
    "Applied",
    "Apply",
    "Arrived",
    "Broken",
    "Call",
    "Discard",
    "Event",
    "Fail",
    "Finish",
    "Instruction",
    "Reply",
    "Report",
    "Reset",
    "Save",
    "Send",
    "Shared",
    "Snapshot",
    "StartOver",
    "Tick",
    "stopped",
]


class Call(NamedTuple):
    """Whose call, and which: the repeat of a call has the same name."""

    trainer: int
    incarnation: int
    sequence: int


NO_CALL = Call(-1, 0, 0)


# -- events ------------------------------------------------------------------------------------
class Arrived(msgspec.Struct):
    """A trainer's message. `names` and `size` say which variables it brings or asks for, and how
    many bytes that touches; `fault` says what is wrong with its payload. Only counted messages have
    a `call`.
    """

    ticket: int
    message: m.Message
    call: Call = NO_CALL
    names: tuple[str, ...] = ()
    size: int = 0
    fault: str = ""


def stopped(cause: str) -> Arrived:
    """The server's own process gives up."""
    return Arrived(0, m.Abort(trainer=-1, incarnation=0, step=-1, cause=cause))


class Reset(msgspec.Struct, frozen=True):
    """The last connection of a trainer has ended, and not in order. `ended`: its process has."""

    trainer: int
    incarnation: int
    ended: bool = False


class Tick(msgspec.Struct, frozen=True):
    """The time is `now`, in seconds of any steady clock."""

    now: float


class Applied(msgspec.Struct, frozen=True):
    """The update `number` has been computed."""

    number: int


class Broken(msgspec.Struct, frozen=True):
    """The update `number` failed."""

    number: int
    cause: str


Event: TypeAlias = Arrived | Reset | Tick | Applied | Broken


# -- answers: a message, or leave to read ---------------------------------------------------------
class Send(msgspec.Struct, frozen=True):
    """Send these variables, as they are after update `version`; no names means no payload."""

    names: tuple[str, ...]
    version: int
    size: int = 0


class Shared(msgspec.Struct, frozen=True):
    """Send what lies under these tickets: one of each trainer, in their order; `calls` brought
    it.
    """

    tickets: tuple[int, ...]
    size: int = 0
    calls: tuple[Call, ...] = ()


Answer: TypeAlias = m.Welcome | m.Accepted | m.Refused | Send | Shared


# -- instructions ------------------------------------------------------------------------------
class Reply(msgspec.Struct, frozen=True):
    ticket: int
    answer: Answer


class Apply(msgspec.Struct, frozen=True):
    """Bind the payloads of `pushes` in this order, take `absent` as zero, run `blocks`; then say
    Applied. Blocks that run for the `first` time are compiled, which the event loop does not do.
    `barriers` have ended the round.
    """

    number: int
    blocks: tuple[int, ...]
    pushes: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()
    trainer: int = -1
    size: int = 0
    first: bool = False
    barriers: tuple[Call, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """Remember these variables as `trainer` sees them now."""

    trainer: int
    names: tuple[str, ...]
    size: int = 0


class Save(msgspec.Struct, frozen=True):
    """Save everything as it is now, where the shell was told under `ticket`. In rounds,
    `trainers` take part.
    """

    ticket: int
    trainers: tuple[int, ...] = ()


class Discard(msgspec.Struct, frozen=True):
    """The payload kept under `ticket` will not be used."""

    ticket: int


class Finish(msgspec.Struct, frozen=True):
    """Every trainer has completed, or could be told of the failure: stop serving."""


class Report(msgspec.Struct, frozen=True):
    """A line for the server's log."""

    text: str


class StartOver(msgspec.Struct, frozen=True):
    """The job was restarted: drop the record, and serve it from the start."""


class Fail(msgspec.Struct, frozen=True):
    """The job has failed: say so, and end idle connections, so that their trainers ask at once."""

    failure: m.Refused


Instruction: TypeAlias = (
    Reply | Apply | Snapshot | Save | Discard | Finish | Report | StartOver | Fail
)
