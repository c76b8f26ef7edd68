"""What the core hears and what it says: events in, instructions out.

A `ticket` is the shell's number for one waiting call, or for one received payload; a `Call` names
a counted call of a trainer, so that its repeat is recognised. Nothing here holds an array.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bireme.net.membership import UNTOLD, JobSize

__all__ = [
    "INLINE",
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
    "Leased",
    "Prefetch",
    "Pull",
    "Push",
    "Reply",
    "Report",
    "Reset",
    "Save",
    "Send",
    "Share",
    "Shared",
    "Snapshot",
    "StartOver",
    "Tick",
    "Welcome",
]


INLINE = 8 << 20  # bytes: a copy of so much takes the event loop a few milliseconds at most


class Call(NamedTuple):
    """Whose call, and which: the repeat of a call has the same name."""

    trainer: int
    incarnation: int
    sequence: int


# -- events ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Hello:
    """A trainer greets. Its next call is `first`; `seen` is the last version that it was sent;
    `size` is what it was told of the job.
    """

    ticket: int
    trainer: int
    incarnation: int
    beats: bool = True
    first: int = 1
    seen: int = 0
    size: JobSize = UNTOLD


@dataclass(frozen=True, slots=True)
class Push:
    """Gradients have arrived, `size` bytes; the shell keeps their payload under `ticket`. `fault`
    says what is wrong with their values.
    """

    ticket: int
    call: Call
    step: int
    names: tuple[str, ...]
    size: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    ticket: int
    call: Call
    step: int
    inherits: bool = False  # a former life of the trainer has pushed


@dataclass(frozen=True, slots=True)
class Pull:
    """Variables are wanted; they take `size` bytes."""

    ticket: int
    call: Call
    names: tuple[str, ...] = ()
    gated: bool = True
    size: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Rows of tables are wanted; to find and copy them touches `size` bytes. The shell keeps the
    ids under `ticket`.
    """

    ticket: int
    call: Call
    tables: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """A trainer brings arrays that all shall have, `size` bytes; the shell keeps them under
    `ticket`.
    """

    ticket: int
    call: Call
    step: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A trainer wants everything saved; the shell keeps where to under `ticket`. `fault` says why
    not there.
    """

    ticket: int
    call: Call
    step: int
    fault: str = ""


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
    """A trainer gives up; trainer -1 is the server's own process. Where it was told of somebody
    else's failure, `kind` and `peer` are that failure's.
    """

    ticket: int
    trainer: int
    incarnation: int
    step: int
    cause: str
    kind: str = ""
    peer: str = ""


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
    Reset | Leased | Tick | Applied | Broken
)  # fmt: skip


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


# -- answers -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Welcome:
    mode: int
    passed: int = 0  # barriers of this trainer, in whatever life
    pushed: int = 0  # pushes since, of a former life


@dataclass(frozen=True, slots=True)
class Accepted:
    pass


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

    failure: Failure


Instruction: TypeAlias = (
    Reply | Apply | Snapshot | Save | Discard | Finish | Report | StartOver | Fail
)
