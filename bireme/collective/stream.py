"""Moving bytes over several links at once, both ways, without threads and without deadlock.

Knows sockets and buffers; does not know what the bytes mean, nor why a peer is gone: it asks
the `Guard` for that.
"""

import select
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bireme.runtime.arrays import Array

__all__ = ["Guard", "Pending", "exchange", "swap"]

_TICK = 0.2  # seconds between two looks at the guard while nothing moves
_AT_ONCE = 8  # buffers handed to one system call


class Guard(Protocol):
    """What a waiting rank asks: may I go on, and who is to blame."""

    def check(self, awaited: Sequence[int]) -> None:
        """Raise when the job is lost or the deadline has passed."""

    def lost(self, peer: int) -> Exception:
        """The error for a link that `peer` closed."""


class Pending:
    """What one link still has to send and to receive."""

    __slots__ = ("incoming", "outgoing", "socket")

    def __init__(
        self, link: socket.socket, outgoing: Sequence[Array] = (), incoming: Sequence[Array] = ()
    ) -> None:
        self.socket = link
        self.outgoing = [view for view in map(_bytes, outgoing) if view.nbytes]
        self.incoming = [view for view in map(_bytes, incoming) if view.nbytes]

    @property
    def events(self) -> int:
        wanted = select.POLLIN if self.incoming else 0
        return wanted | (select.POLLOUT if self.outgoing else 0)

    def push(self) -> bool:
        """Send what the kernel takes; False when it takes nothing."""
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
        """Receive what is there; False when there is nothing; EOFError when the peer is gone."""
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


def swap(
    links: Mapping[int, socket.socket],
    frame: bytes,
    rider: bytes,
    sizes: Mapping[int, int],
    guard: Guard,
) -> dict[int, bytearray]:
    """Send frame and rider to every link; from link p read a frame and sizes[p] bytes behind it.

    A frame unlike ours ends what is read from its link: the other side makes another call.
    This is `exchange` for messages that fit the kernel's buffers, without its bookkeeping.
    """
    message = frame + rider
    unsent = {peer: rest for peer, link in links.items() if (rest := _send_now(link, message))}
    if unsent:
        exchange({peer: Pending(links[peer], [rest]) for peer, rest in unsent.items()}, guard)
    answers = {}
    for peer, link in links.items():
        answers[peer] = bytearray(len(frame) + sizes[peer])
        try:
            _take(link, answers[peer], frame, peer, guard)
        except (EOFError, ConnectionError):
            raise guard.lost(peer) from None
    return answers


def _send_now(link: socket.socket, message: bytes) -> bytes:
    """Send what fits at once; return the rest. A closed link shows when it is read."""
    try:
        return message[link.send(message) :]
    except BlockingIOError:
        return message
    except ConnectionError:
        return b""


def _take(link: socket.socket, buffer: bytearray, frame: bytes, peer: int, guard: Guard) -> None:
    view = memoryview(buffer)
    got = 0
    while got < len(buffer):
        try:
            count = link.recv_into(view[got:])
        except BlockingIOError:
            poll = select.poll()
            poll.register(link, select.POLLIN)
            if not poll.poll(_TICK * 1000):
                guard.check([peer])
            continue
        if count == 0:
            raise EOFError
        got += count
        if got >= len(frame) and not buffer.startswith(frame):
            return


def exchange(pending: Mapping[int, Pending], guard: Guard) -> None:
    """Complete every transfer, in whatever order the links allow; keys are ranks."""
    waiting = dict(pending)
    while True:
        moved = False
        for peer, link in list(waiting.items()):
            try:
                moved |= link.push()
                moved |= link.pull()
            except (EOFError, ConnectionError):
                raise guard.lost(peer) from None
            if not link.events:
                del waiting[peer]
        if not waiting:
            return
        if not moved:
            _wait(waiting, guard)


def _wait(waiting: Mapping[int, Pending], guard: Guard) -> None:
    poll = select.poll()
    for link in waiting.values():
        poll.register(link.socket, link.events)
    if not poll.poll(_TICK * 1000):
        guard.check([peer for peer, link in waiting.items() if link.incoming] or list(waiting))


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
