"""The ports between a trainer and one server, whatever carries the bytes. No sockets, no gRPC.

A trainer holds an `Endpoint`: small calls, and one `Exchange` at a time. An exchange writes frames
and receives one answer. gRPC is the endpoint's own carrier; a welcome may offer better ones
(`socket_client`), and the tests bring an in-process one.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from bireme.errors import BiremeError, PeerError, ProtocolError

from . import messages as m
from .error_replies import refusal
from .frames import Buffer, Decoder, Received, encode, pieces_of

__all__ = [
    "Carrier",
    "Connection",
    "Dial",
    "Endpoint",
    "Exchange",
    "Foreign",
    "Handler",
    "Unreachable",
    "answers",
    "refused",
]


class Unreachable(PeerError):
    """The peer did not answer: not connected, connection lost, or cancelled. The call may or may
    not have arrived.
    """


class Foreign(PeerError):
    """The peer answers, and does not speak this protocol."""


# -- the trainer's side ------------------------------------------------------------------------
class Exchange(Protocol):
    """Frames to a server, then one answer. After Unreachable it is dead: open another."""

    def write(self, parts: Sequence[Buffer]) -> None:
        """Send a frame, in order. May return before it has left, so the parts must not change
        until the answer has come.
        """

    def end(self) -> None:
        """Nothing more will be written."""

    def receive(self, decoder: Decoder) -> Received:
        """Wait for the answer.

        Raises:
            Unreachable: the connection ended, or the exchange was cancelled.
            DeadlineExceeded: the answer did not come in time.
            FormatError: what came is not a frame.
        """

    def cancel(self) -> None:
        """Give up; a blocked `receive` raises Unreachable. Any thread may call it."""


class Carrier(Protocol):
    """A way to one server; one exchange at a time."""

    def exchange(self, timeout: float) -> Exchange:
        """Begin an exchange that lives at most `timeout` seconds; never raises."""

    def fileno(self) -> int:
        """The descriptor that becomes readable when an answer comes; -1 if there is none, so that
        only `receive` can wait for it.
        """

    def close(self) -> None:
        """Free the connection."""


class Endpoint(Carrier, Protocol):
    """A server's address: carrier of last resort, and of small calls."""

    endpoint: str

    def open(self, offers: Sequence[m.Offer], life: int, key: bytes) -> Carrier:
        """The first of a welcome's offers that can be reached from here; itself if none can."""

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        """One small request and its reply; `wait` allows for a server that has not started yet.

        Raises:
            Unreachable, DeadlineExceeded: no reply came.
            Foreign: the peer does not speak this protocol.
        """


Dial = Callable[[str], Endpoint]


# -- the server's side -------------------------------------------------------------------------
class Connection(Protocol):
    """One trainer's frames, in order."""

    decoder: Decoder

    def admit(self, key: bytes) -> bool:
        """Whether the greeting's key is that of a trainer that was welcomed."""

    def end(self, reset: bool) -> None:
        """The connection has ended; `reset`: not in order."""

    def hear(self, received: Received) -> Awaitable[Sequence[Buffer]] | None:
        """Take a frame; what will bring the answer's parts if it asks for one.

        Raises:
            BiremeError: the frame has no place here.
        """


class Handler(Protocol):
    """What a server does with calls and frames."""

    async def call(self, request: bytes) -> bytes:
        """Answer one small request."""

    def connect(self, hang_up: Callable[[], None] | None = None) -> Connection:
        """A trainer has connected; `hang_up` ends the connection if it awaits no answer."""


def refused(error: Exception) -> bytes:
    """The reply to bytes that cannot be understood. An unexpected error is a refusal too: a peer
    that waits must hear something.
    """
    known = error if isinstance(error, BiremeError) else ProtocolError(f"bad frame: {error!r}")
    return encode(refusal(known))


async def answers(connection: Connection, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Serve frames that come in pieces; any refusal is answered at once and ends the stream."""
    reset = True
    try:
        async for piece in pieces:
            received = connection.decoder.feed(piece)
            waiting = connection.hear(received) if received is not None else None
            if waiting is not None:
                for answer in pieces_of(await waiting):
                    yield answer
        reset = False
    except Exception as error:  # bytes from outside must not end in a silent connection
        reset = False
        yield refused(error)
    finally:
        connection.end(reset)
