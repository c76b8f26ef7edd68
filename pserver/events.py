"""What the core of a server hears and what it says: events in, instructions out.

A trainer's message arrives as it came over the wire (`Arrived`). A `ticket` is the shell's number
for one waiting call, and for the payload that came with it; a `Call` names a counted call of a
trainer, so that its repeat is recognised. Nothing here holds an array.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bireme.net import messages as m

__all__ = [
    "INLINE",
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
    "Leased",
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


INLINE = 8 << 20  # bytes: a copy of so much takes the event loop a few milliseconds at most


class Call(NamedTuple):
    """Whose call, and which: the repeat of a call has the same name."""

    trainer: int
    incarnation: int
    sequence: int


# -- events ------------------------------------------------------------------------------------
class Arrived:
    """A trainer's message. `names` and `size` say which variables it brings or asks for, and how
    many bytes that touches; `fault` says what is wrong with its payload.
    """

    __slots__ = ("call", "fault", "message", "names", "size", "ticket")

    def __init__(
        self,
        ticket: int,
        message: m.Message,
        names: tuple[str, ...] = (),
        size: int = 0,
        fault: str = "",
    ) -> None:
        self.ticket = ticket
        self.message = message
        self.names = names
        self.size = size
        self.fault = fault
        # Only counted messages have a number.
        self.call = Call(
            getattr(message, "trainer", -1),
            getattr(message, "incarnation", 0),
            getattr(message, "sequence", 0),
        )


def stopped(cause: str) -> Arrived:
    """The server's own process gives up."""
    return Arrived(0, m.Abort(trainer=-1, incarnation=0, step=-1, cause=cause))


@dataclass(frozen=True, slots=True)
class Reset:
    """The last connection of a trainer has ended, and not in order. `ended`: its process has."""

    trainer: int
    incarnation: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer to `call` names a region of shared memory; the trainer may read it from now on."""

    region: int
    call: Call


@dataclass(frozen=True, slots=True)
class Tick:
    """The time is `now`, in seconds of any steady clock."""

    now: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The update `number` has been computed."""

    number: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The update `number` failed."""

    number: int
    cause: str


Event: TypeAlias = Arrived | Reset | Leased | Tick | Applied | Broken


# -- work --------------------------------------------------------------------------------------
class Work:
    """Something for the shell to do that touches `size` bytes."""

    __slots__ = ()
    size: int

    @property
    def inline(self) -> bool:
        """Whether the event loop may do it itself: handing it to the worker would take as long.
        The worker does what is larger, so that no heartbeat waits for it.
        """
        return self.size <= INLINE


# -- answers: a message, or leave to read ---------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send(Work):
    """Send these variables, as they are after update `version`; no names means no payload."""

    names: tuple[str, ...]
    version: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Shared(Work):
    """Send what lies under these tickets: one of each trainer, in their order; `calls` brought
    it.
    """

    tickets: tuple[int, ...]
    size: int = 0
    calls: tuple[Call, ...] = ()


Answer: TypeAlias = m.Welcome | m.Accepted | m.Refused | Send | Shared


# -- instructions ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reply:
    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Apply(Work):
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

    @property
    def inline(self) -> bool:
        return self.size <= INLINE and not self.first


@dataclass(frozen=True, slots=True)
class Snapshot(Work):
    """Remember these variables as `trainer` sees them now."""

    trainer: int
    names: tuple[str, ...]
    size: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Save everything as it is now, where the shell was told under `ticket`. In rounds,
    `trainers` take part.
    """

    ticket: int
    trainers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Discard:
    """The payload kept under `ticket` will not be used."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Every trainer has completed, or could be told of the failure: stop serving."""


@dataclass(frozen=True, slots=True)
class Report:
    """A line for the server's log."""

    text: str


@dataclass(frozen=True, slots=True)
class StartOver:
    """The job has begun anew: forget the record, and serve it from the start."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The job has failed: say so, and end idle connections, so that their trainers ask at once."""

    failure: m.Refused


Instruction: TypeAlias = (
    Reply | Apply | Snapshot | Save | Discard | Finish | Report | StartOver | Fail
)
