"""What the core hears and what it says: events in, instructions out.

A `ticket` is the shell's number for one waiting call, or for one received payload; a `Call` names
a counted call of a trainer, so that its repeat is recognised. Nothing here holds an array.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "Abort",
    "Accepted",
    "Applied",
    "Apply",
    "Barrier",
    "Broken",
    "Call",
    "Checkpoint",
    "Complete",
    "Discard",
    "Event",
    "Fail",
    "Failure",
    "Finish",
    "Heartbeat",
    "Hello",
    "Instruction",
    "Prefetch",
    "Pull",
    "Push",
    "Reply",
    "Save",
    "Send",
    "Share",
    "Shared",
    "Snapshot",
    "Tick",
    "Welcome",
]


class Call(NamedTuple):
    """Whose call, and which: the repeat of a call has the same name."""

    trainer: int
    incarnation: int
    sequence: int


# -- events ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello:
    ticket: int
    trainer: int
    incarnation: int
    beats: bool = True


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients have arrived; the shell keeps their payload under `ticket`."""

    ticket: int
    call: Call
    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    ticket: int
    call: Call
    step: int


@dataclass(frozen=True, slots=True)
class Pull:
    ticket: int
    call: Call
    names: tuple[str, ...] = ()
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Rows of tables are wanted; the shell keeps the ids under `ticket`."""

    ticket: int
    call: Call
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """A trainer brings arrays that all shall have; the shell keeps them under `ticket`."""

    ticket: int
    call: Call
    step: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A trainer wants everything saved; the shell keeps where to under `ticket`."""

    ticket: int
    call: Call
    step: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    ticket: int
    trainer: int
    incarnation: int
    step: int


@dataclass(frozen=True, slots=True)
class Complete:
    ticket: int
    trainer: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Abort:
    """A trainer gives up; trainer -1 is the server's own process."""

    ticket: int
    trainer: int
    incarnation: int
    step: int
    cause: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time goes on; `now` is seconds on any steady clock."""

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


Event: TypeAlias = (
    Hello | Push | Barrier | Pull | Prefetch | Share | Checkpoint | Heartbeat | Complete | Abort |
    Tick | Applied | Broken
)  # fmt: skip


# -- answers -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Welcome:
    mode: int
    trainers: int


@dataclass(frozen=True, slots=True)
class Accepted:
    pass


@dataclass(frozen=True, slots=True)
class Send:
    """Send these variables, as they are after update `version`; no names means no payload."""

    names: tuple[str, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Shared:
    """Send what lies under these tickets: one of each trainer, in their order."""

    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call is refused, or the job ended; `kind` is a class of the error tree."""

    kind: str
    text: str
    peer: str = ""
    step: int = -1
    hint: str = ""


Answer: TypeAlias = Welcome | Accepted | Send | Shared | Failure


# -- instructions ------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reply:
    ticket: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Apply:
    """Bind the payloads of `pushes` in this order, take `absent` as zero, run `blocks`; then say
    Applied.
    """

    number: int
    blocks: tuple[int, ...]
    pushes: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()
    trainer: int = -1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Remember these variables as `trainer` sees them now."""

    trainer: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Save everything as it is now, where the shell was told under `ticket`."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Discard:
    """The payload kept under `ticket` will not be used."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Every trainer has completed: stop serving."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Everybody who could be told has been told: stop serving with this error."""

    failure: Failure


Instruction: TypeAlias = Reply | Apply | Snapshot | Save | Discard | Finish | Fail
