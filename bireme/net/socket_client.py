"""Frames over sockets, the trainer's end: a connection to one server, and its exchanges.

Large arrays leave in a thread of their own while the trainer computes, from where they lie; small
frames wait for each other until the exchange ends. A connection that breaks is not mended: the
trainer greets the server again and opens another.
"""

import contextlib
import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from bireme.errors import BiremeError, DeadlineExceeded

from . import messages as m
from . import sockets
from .carriers import Unreachable
from .frames import Buffer, Decoder, Received

__all__ = ["SocketCarrier", "SocketExchange", "connect"]

CONNECT_SECONDS = 1.0
_BUFFER = 64 << 10
_WAKE = 512 << 10  # bytes of a large array that are worth waking up for
_AT_ONCE = 64  # buffers handed to one system call


def connect(
    offers: Iterable[m.Offer], endpoint: str, life: int, key: bytes
) -> "SocketCarrier | None":
    """The first of a server's offers that can be reached from here; None if none can."""
    for offer in offers:
        with contextlib.suppress(OSError):
            return SocketCarrier(_open(offer, endpoint), endpoint, life, key)
    return None


def _open(offer: m.Offer, endpoint: str) -> socket.socket:
    if isinstance(offer, m.UnixSocket):
        return sockets.connect_unix(offer.name, CONNECT_SECONDS)
    host = endpoint.rpartition(":")[0]
    return sockets.connect_tcp(f"{host}:{offer.port}", CONNECT_SECONDS)


class SocketCarrier:
    """A connection to a server's socket; one exchange at a time."""

    def __init__(self, connected: socket.socket, endpoint: str, life: int, key: bytes) -> None:
        """Greet the server.

        Raises:
            OSError: another process listens there.
        """
        self.endpoint = endpoint
        self.socket = connected
        try:
            sockets.greet(connected, key, life, CONNECT_SECONDS)
        except OSError:
            connected.close()
            raise
        self.reader = _Reader(connected)
        self.writer = _Writer(connected)

    def fileno(self) -> int:
        return self.socket.fileno()

    def exchange(self, timeout: float) -> "SocketExchange":
        return SocketExchange(self, timeout)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.writer.close()
        self.socket.close()


class SocketExchange:
    """One exchange; see `carriers.Exchange`."""

    def __init__(self, carrier: SocketCarrier, timeout: float) -> None:
        self._carrier = carrier
        self._until = time.monotonic() + timeout
        self._small: list[Buffer] = []
        self._small_size = 0
        self._over: BiremeError | None = None

    def write(self, parts: Sequence[Buffer]) -> None:
        self._small += parts
        self._small_size += sum(map(len, parts))
        if self._small_size > _BUFFER:
            self.end()

    def end(self) -> None:
        parts, self._small, self._small_size = self._small, [], 0
        self._carrier.writer.write(parts, self._until)

    def receive(self, decoder: Decoder) -> Received:
        if self._over is not None:
            raise self._over
        reader = self._carrier.reader
        try:
            for wanted in decoder.frames():
                if isinstance(wanted, Received):
                    return wanted
                reader.fill(wanted, self._until)
            raise AssertionError("frames never end")
        except TimeoutError:
            self._over = Unreachable("an answer may still come", peer=self._name)
            raise DeadlineExceeded(
                f"{self._name} did not answer in time", peer=self._name
            ) from None
        except OSError as error:
            self._over = Unreachable(f"{self._name}: {error}", peer=self._name)
            raise self._over from None

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._carrier.socket.shutdown(socket.SHUT_RDWR)

    @property
    def _name(self) -> str:
        return f"server {self._carrier.endpoint}"


class _Reader:
    """Reads ahead what is small, and large arrays in place."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._ahead = memoryview(bytearray(_BUFFER))
        self._begin = self._end = 0

    def fill(self, target: memoryview, until: float) -> None:
        """Fill `target`.

        Raises:
            OSError: the connection ended; TimeoutError: the time `until` has come.
        """
        filled = self._copy(target)
        direct = len(target) - filled > _BUFFER
        while filled < len(target):
            self._socket.settimeout(max(1e-3, until - time.monotonic()))
            if direct:
                self._wake_at(min(_WAKE, len(target) - filled))
                filled += self._received(self._socket.recv_into(target[filled:]))
            else:
                self._begin, self._end = 0, self._received(self._socket.recv_into(self._ahead))
                filled += self._copy(target[filled:])
        if direct:
            self._wake_at(1)

    def _copy(self, target: memoryview) -> int:
        size = min(len(target), self._end - self._begin)
        target[:size] = self._ahead[self._begin : self._begin + size]
        self._begin += size
        return size

    @staticmethod
    def _received(size: int) -> int:
        if not size:
            raise ConnectionResetError("the connection ended")
        return size

    def _wake_at(self, size: int) -> None:
        """Sleep until `size` bytes have come, where the system can do that."""
        if sys.platform == "linux":
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


class _Writer:
    """Sends in the order given; what is large in a thread of its own."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected.dup()
        self._queue: queue.SimpleQueue[tuple[Sequence[Buffer], float] | None] = queue.SimpleQueue()
        self._given = self._sent = 0
        self._thread: threading.Thread | None = None

    def write(self, parts: Sequence[Buffer], until: float) -> None:
        if self._given == self._sent and sum(map(len, parts)) <= _BUFFER:
            self._send(parts, until)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="socket-writer", daemon=True)
            self._thread.start()
        self._given += 1
        self._queue.put((parts, until))

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            self._send(*given)
            self._sent += 1
        self._socket.close()

    def _send(self, parts: Sequence[Buffer], until: float) -> None:
        """Send, or end the connection: the reader will find out."""
        left = deque(memoryview(part) for part in parts if len(part))
        try:
            while left:
                self._socket.settimeout(max(1e-3, until - time.monotonic()))
                size = self._socket.sendmsg([*left][:_AT_ONCE])
                while left and size >= len(left[0]):
                    size -= len(left.popleft())
                if size:
                    left[0] = left[0][size:]
        except OSError:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._thread is None:
            self._socket.close()
        else:
            self._queue.put(None)
