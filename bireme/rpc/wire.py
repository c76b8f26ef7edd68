"""The port between a trainer's link and one server: a call, and an exchange of pieces. It knows
no gRPC.

Two implementations exist from the start: sockets (`client`), and function calls in one process
(in the tests).
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from bireme.errors import PeerError

from .codec import Decoder, Received

__all__ = ["Dial", "Exchange", "Foreign", "Service", "Talk", "Unreachable", "Wire"]


class Unreachable(PeerError):
    """The peer did not answer: not connected, connection lost, or cancelled. The call may or may
    not have arrived.
    """


class Foreign(PeerError):
    """The peer answers, and does not speak this protocol."""


class Exchange(Protocol):
    """One stream of pieces in each direction. After Unreachable it is dead: open another."""

    def write(self, pieces: list[bytes]) -> None:
        """Send pieces, in order; may return before they have left."""

    def close(self) -> None:
        """Nothing more will be written."""

    def read(self) -> bytes | None:
        """The next piece from the peer; None at the end. Raises Unreachable."""

    def cancel(self) -> None:
        """Give up; a blocked `read` raises Unreachable."""


class Wire(Protocol):
    """A connection to one server."""

    endpoint: str

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        """One small request; `wait` allows for a server that has not started yet. Raises
        Unreachable.
        """

    def exchange(self, timeout: float, brief: bool = False) -> Exchange:
        """Open a stream that lives at most `timeout` seconds; never raises. A `brief` one expects
        little on the wire, and may wait with it until it is closed.
        """

    def close(self) -> None:
        """Free the connection."""


Dial = Callable[[str], Wire]


class Talk(Protocol):
    """One trainer's frames, as they come."""

    decoder: Decoder

    async def hear(self, received: Received) -> list[Any] | None:
        """Take a frame; the answer's pieces if it asks for one."""


class Service(Protocol):
    """What a server does with calls and exchanges; whoever carries the bytes."""

    async def call(self, request: bytes) -> bytes:
        """Answer one small request."""

    def exchange(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Answer a stream of pieces with another."""

    def talk(self, direct: bool) -> Talk:
        """The same, frame by frame; `direct` answers with arrays' own memory, not with bytes."""
