"""Sending and receiving on several non-blocking sockets at once, without threads or deadlock.

Buffers go in and out as they are; what the bytes mean is not known here.
"""

import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bireme.arrays.namespaces import Array

__all__ = [
    "FailureDetector",
    "Guard",
    "Transfer",
    "exchange",
    "exchange_small",
    "receive_small",
    "send_small",
]

_TICK = 0.2  # seconds between two looks at the guard while nothing moves
_AT_ONCE = 8  # buffers handed to one system call


class Guard(Protocol):
    """Asked by a rank that waits; ranks are those of its group."""

    def check(self, awaited: Sequence[int]) -> None:
        """Raise if the job is lost or the deadline has passed."""

    def lost(self, peer: int) -> Exception:
        """The error for a connection that `peer` closed."""


class FailureDetector(Protocol):
    """What is known about the ranks of a job; ranks are those of the job."""

    timeout: float  # seconds to wait for a rank that is alive

    def check(self) -> None:
        """Raise if a rank is known to be lost."""

    def lost(self, rank: int) -> Exception:
        """The error for a connection that `rank` closed, naming the rank at fault."""


class Transfer:
    """What is still to be sent and received on one connection."""

    __slots__ = ("incoming", "outgoing", "socket")

    def __init__(
        self,
        connection: socket.socket,
        outgoing: Sequence[Array] = (),
        incoming: Sequence[Array] = (),
    ) -> None:
        self.socket = connection
        self.outgoing = [view for view in map(_bytes, outgoing) if view.nbytes]
        self.incoming = [view for view in map(_bytes, incoming) if view.nbytes]

    @property
    def events(self) -> int:
        wanted = select.POLLIN if self.incoming else 0
        return wanted | (select.POLLOUT if self.outgoing else 0)

    def push(self) -> bool:
        """Send what the kernel takes; False if it takes nothing."""
        moved = False
        while self.outgoing:
            try:
                count = self.socket.sendmsg(self.outgoing[:_AT_ONCE])
            except BlockingIOError:
                return moved
            moved = True
            _advance(self.outgoing, count)
        return moved

    def pull(self) -> bool:
        """Receive what is there; False if there is nothing; EOFError at the end."""
        moved = False
        while self.incoming:
            try:
                count = self.socket.recvmsg_into(self.incoming[:_AT_ONCE])[0]
            except BlockingIOError:
                return moved
            if count == 0:
                raise EOFError
            moved = True
            _advance(self.incoming, count)
        return moved


def exchange_small(
    connections: Mapping[int, socket.socket],
    frame: bytes,
    payload: bytes,
    sizes: Mapping[int, int],
    guard: Guard,
) -> dict[int, bytearray]:
    """Send frame and payload to all; from each peer p receive a frame and sizes[p] bytes.

    The same as `exchange`, without its bookkeeping, for messages that fit into the kernel's
    buffers.
    """
    send_small(connections, frame + payload, guard)
    return receive_small(connections, frame, sizes, guard)


def send_small(connections: Mapping[int, socket.socket], message: bytes, guard: Guard) -> None:
    """Send a message to all, without waiting as long as the kernel's buffers take it."""
    unsent = {p: rest for p, to in connections.items() if (rest := _send_now(to, message))}
    if unsent:
        exchange({p: Transfer(connections[p], [rest]) for p, rest in unsent.items()}, guard)


def receive_small(
    connections: Mapping[int, socket.socket], frame: bytes, sizes: Mapping[int, int], guard: Guard
) -> dict[int, bytearray]:
    """From each peer p receive a frame and sizes[p] bytes. A frame that differs from ours is not
    read past: that peer makes another call.
    """
    answers = {}
    for peer, connection in connections.items():
        answers[peer] = bytearray(len(frame) + sizes[peer])
        try:
            _take(connection, answers[peer], frame, peer, guard)
        except (EOFError, ConnectionError):
            raise guard.lost(peer) from None
    return answers


def _send_now(connection: socket.socket, message: bytes) -> bytes:
    """Send what fits at once; return the rest. That a connection is closed shows on reading."""
    try:
        return message[connection.send(message) :]
    except BlockingIOError:
        return message
    except ConnectionError:
        return b""


def _take(
    connection: socket.socket, buffer: bytearray, frame: bytes, peer: int, guard: Guard
) -> None:
    view = memoryview(buffer)
    got = 0
    while got < len(buffer):
        try:
            count = connection.recv_into(view[got:])
        except BlockingIOError:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(_TICK * 1000):
                guard.check([peer])
            continue
        if count == 0:
            raise EOFError
        got += count
        if got >= len(frame) and not buffer.startswith(frame):
            return


def exchange(transfers: Mapping[int, Transfer], guard: Guard) -> None:
    """Complete the transfers, by rank, in whatever order the peers allow."""
    waiting = dict(transfers)
    while True:
        moved = False
        for peer, transfer in list(waiting.items()):
            try:
                moved |= transfer.push()
                moved |= transfer.pull()
            except (EOFError, ConnectionError):
                raise guard.lost(peer) from None
            if not transfer.events:
                del waiting[peer]
        if not waiting:
            return
        if not moved:
            _wait(waiting, guard)


def _wait(waiting: Mapping[int, Transfer], guard: Guard) -> None:
    poll = select.poll()
    for transfer in waiting.values():
        poll.register(transfer.socket, transfer.events)
    if not poll.poll(_TICK * 1000):
        guard.check(
            [peer for peer, transfer in waiting.items() if transfer.incoming] or list(waiting)
        )


def _bytes(buffer: Any) -> memoryview:
    if isinstance(buffer, (bytes, bytearray, memoryview)):
        return memoryview(buffer).cast("B")
    return memoryview(buffer.view("uint8")).cast("B") if buffer.nbytes else memoryview(b"")


def _advance(views: list[memoryview], count: int) -> None:
    """Drop the first `count` bytes of a list of buffers."""
    while count:
        if count < views[0].nbytes:
            views[0] = views[0][count:]
            return
        count -= views[0].nbytes
        del views[0]
