"""The messages between trainers and servers, one record each. No bytes, no arrays.

A call that must count once is `Numbered`: (trainer, incarnation, sequence) names it, and its
repeat has the same name. Tensors follow a message as payload (`frames`).
"""

from typing import TypeAlias

import msgspec

from .membership import UNTOLD, JobSize
from .processes import UNKNOWN, ProcessId

__all__ = [
    "KINDS",
    "NOT_GREETED",
    "Abort",
    "Accepted",
    "Barrier",
    "Complete",
    "Heartbeat",
    "Hello",
    "Lookup",
    "Message",
    "Numbered",
    "Offer",
    "Pull",
    "Push",
    "Refused",
    "Save",
    "Share",
    "TcpPort",
    "Tensor",
    "UnixSocket",
    "Values",
    "Welcome",
]


NOT_GREETED = "NotGreeted"  # kind of a refusal: greet this life of the server, and repeat


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """What follows a message: `rows` counts the row ids before the values of SelectedRows, -1
    says dense.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    lod: tuple[tuple[int, ...], ...] = ()
    rows: int = -1
    height: int = 0


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """Anything said; `place` says where its payload lies if not behind it."""

    place: tuple[str, int] | None = None  # name of a shared segment, first byte


class Numbered(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """A trainer's call within its exchange with one server; `answer` asks for a reply to this
    very message.
    """

    trainer: int
    incarnation: int
    sequence: int
    step: int
    answer: bool = False


class Push(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """Gradients; the payload is keyed by the names that the server's program gives them."""


class Barrier(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """The trainer has pushed everything of this round; `inherits`: its former life has."""

    inherits: bool = False


class Pull(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """Please send these variables; ungated means now, whatever round is open."""

    names: tuple[str, ...]
    gated: bool = True


class Lookup(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """Please send rows of tables; the payload holds the ids, keyed by table."""


class Share(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """Give every trainer what each of them brings; the payload is arrays by name."""


class Save(Numbered, frozen=True, array_like=True, tag=True, kw_only=True):
    """Write a part of a checkpoint to this folder: what the round that is over has left."""

    folder: str
    parts: tuple[str, ...] = ()  # beside the servers', those that make the checkpoint complete
    everybody: bool = False  # and those of all trainers that take part in rounds now


class Hello(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """A trainer introduces itself; `beats` promises heartbeats, `segment` offers shared memory. Its
    next call is `first`, the last version that it was sent is `seen`.
    """

    trainer: int
    incarnation: int
    beats: bool = True
    segment: str = ""
    first: int = 1
    seen: int = 0
    size: JobSize = UNTOLD
    process: ProcessId = UNKNOWN


class Heartbeat(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """The trainer is alive and works on this step."""

    trainer: int
    incarnation: int
    step: int


class Complete(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """The trainer has finished and will say nothing more."""

    trainer: int
    incarnation: int


class Abort(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """The trainer gives up, and why; `kind` and `peer` are set where the cause is a failure of
    another process that this trainer has found or was told of.
    """

    trainer: int
    incarnation: int
    step: int
    cause: str
    kind: str = ""
    peer: str = ""


class UnixSocket(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An abstract Unix socket, for processes of the same host."""

    name: str


class TcpPort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A port on the endpoint's host."""

    port: int


Offer: TypeAlias = UnixSocket | TcpPort  # a carrier beside the endpoint itself


class Welcome(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """The answer to Hello: how this server runs, and which life of it this is."""

    mode: int
    incarnation: int
    shared: bool = False  # both processes can map the same memory
    carriers: tuple[Offer, ...] = ()  # best first
    key: bytes = b""  # who was welcomed presents it when connecting
    earlier: tuple[int, ...] = ()  # lives of this server whose work this one continues
    durable: bool = False  # a later life will continue the work of this one
    passed: int = 0  # barriers of this trainer's number so far, in whatever life
    pushed: int = 0  # pushes since, of a former life of it
    began: str | None = None  # name of the checkpoint that this server has begun with; "": of none
    process: ProcessId = UNKNOWN


class Accepted(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """Done."""


class Values(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """The variables or rows asked for, as payload; `version` counts the server's updates."""

    version: int


class Refused(Message, frozen=True, array_like=True, tag=True, kw_only=True):
    """No: `kind` names the error class, the rest fills it."""

    kind: str
    text: str
    peer: str = ""
    step: int = -1
    hint: str = ""


KINDS: tuple[type[Message], ...] = tuple(
    found
    for found in list(globals().values())
    if isinstance(found, type) and issubclass(found, Message) and found not in (Message, Numbered)
)  # all that can be sent
