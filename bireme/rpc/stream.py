"""Frames over a plain TCP connection: payloads go from array to array, and gRPC carries control.

gRPC copies what it carries several times and hands it from thread to thread; bulk data costs a
fraction of that here. A server tells its port when it is greeted; it is another than the
endpoint's, so whoever cannot reach it, or meets a stranger there, stays with gRPC. Both ends are
here; what the frames mean is not known. A connection that breaks is not mended: the peers greet
each other again.
"""

import asyncio
import contextlib
import queue
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence

from bireme.errors import BiremeError, DeadlineExceeded

from .codec import HEAD, Buffer, Decoder, Received, encode, rest_of_head
from .refusals import refusal
from .wire import Service, Unreachable

__all__ = ["Stream", "StreamExchange", "accepting"]

_GREETING = struct.Struct("<8sQ")  # who serves here: a stranger's port must be noticed
_MAGIC = b"BIREME1\n"
CONNECT = 1.0  # seconds to reach a server's port before gRPC does the work
GRACE = 1.0  # seconds for answers under way when a server ends
_BUFFER = 64 << 10
_WAKE = 512 << 10  # bytes of a large array that are worth waking up for
_LINUX = sys.platform == "linux"


def _wake_at(opened: socket.socket, size: int) -> None:
    """Let a waiting reader sleep until `size` bytes have come, where the system can do that."""
    if _LINUX:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)


class _Ahead:
    """Bytes that were read ahead of what was asked for."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(_BUFFER))
        self.begin = self.end = 0

    def take(self, target: memoryview) -> int:
        """Move what is here into `target`; how much that was."""
        size = min(len(target), self.end - self.begin)
        target[:size] = self.memory[self.begin : self.begin + size]
        self.begin += size
        return size

    def came(self, size: int) -> None:
        """That many bytes were read into the empty memory."""
        if not size:
            raise ConnectionResetError("the connection ended")
        self.begin, self.end = 0, size


# -- the server's end --------------------------------------------------------------------------
class _Inlet:
    """What one trainer sends, on an event loop."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._loop = asyncio.get_running_loop()
        self._ahead = _Ahead()

    async def fill(self, target: memoryview) -> None:
        """Read exactly as much as `target` holds."""
        at = self._ahead.take(target)
        if len(target) - at > _BUFFER:
            at = await self._straight(target, at)
        while at < len(target):
            size = await self._loop.sock_recv_into(self._socket, self._ahead.memory)
            self._ahead.came(size)
            at += self._ahead.take(target[at:])

    async def _straight(self, target: memoryview, at: int) -> int:
        """Read what is large without a stop on the way."""
        while at < len(target):
            _wake_at(self._socket, min(_WAKE, len(target) - at))
            size = await self._loop.sock_recv_into(self._socket, target[at:])
            if not size:
                raise ConnectionResetError("the connection ended")
            at += size
            await asyncio.sleep(0)
        _wake_at(self._socket, 1)
        return at

    async def head(self) -> bytes:
        """The next frame's head."""
        first = bytearray(HEAD)
        await self.fill(memoryview(first))
        rest = bytearray(rest_of_head(first))
        await self.fill(memoryview(rest))
        return bytes(first + rest)


async def _attend(service: Service, opened: socket.socket, greeting: bytes) -> None:
    """Serve one connection to its end."""
    loop = asyncio.get_running_loop()
    opened.setblocking(False)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.closing(opened), contextlib.suppress(OSError):
        await loop.sock_sendall(opened, greeting)
        try:
            await _converse(service, opened)
        except BiremeError as error:
            await loop.sock_sendall(opened, encode(refusal(error))[0])


async def _converse(service: Service, opened: socket.socket) -> None:
    loop, inlet, talk = asyncio.get_running_loop(), _Inlet(opened), service.talk(direct=True)
    while True:
        head = await inlet.head()
        for target in talk.decoder.announce(head):
            await inlet.fill(memoryview(target))
        for piece in await talk.hear(talk.decoder.complete()) or ():
            await loop.sock_sendall(opened, piece)


@contextlib.asynccontextmanager
async def accepting(service: Service, endpoint: str, incarnation: int) -> AsyncIterator[str]:
    """Take streams at a free port of the endpoint's host; gives ":port", "" if there is none.
    Leaving lets answers under way finish.
    """
    host = endpoint.rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family, backlog=128)
    except OSError:
        yield ""
        return
    tasks: set[asyncio.Task[None]] = set()
    greeting = _GREETING.pack(_MAGIC, incarnation)

    async def accept() -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            opened, _ = await loop.sock_accept(listening)
            task = loop.create_task(_attend(service, opened, greeting))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    door = asyncio.get_running_loop().create_task(accept())
    try:
        yield f":{listening.getsockname()[1]}"
    finally:
        door.cancel()
        listening.close()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=GRACE)
            for task in left:
                task.cancel()


# -- the trainer's end -------------------------------------------------------------------------
class _Writer:
    """Sends in the order given; what is large in a thread of its own, beside the computing."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened.dup()
        self._queue: queue.SimpleQueue[tuple[Sequence[Buffer], float] | None] = queue.SimpleQueue()
        self._given = self._sent = 0
        self._thread: threading.Thread | None = None

    def write(self, parts: Sequence[Buffer], until: float) -> None:
        """Send now what is small and need not wait its turn; or later."""
        if self._given == self._sent and sum(map(len, parts)) <= _BUFFER:
            self._send(parts, until)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
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
                size = self._socket.sendmsg(list(left)[:64])
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


class StreamExchange:
    """One exchange over a stream; what is written leaves at once."""

    def __init__(self, stream: "Stream", timeout: float) -> None:
        self._stream = stream
        self._until = time.monotonic() + timeout
        self._over: BiremeError | None = None

    def write(self, parts: Sequence[Buffer]) -> None:
        self._stream.writer.write(parts, self._until)

    def close(self) -> None:
        """The last frame asks for the answer: nothing need be said."""

    def receive(self, decoder: Decoder) -> Received:
        """The answer."""
        if self._over is not None:
            raise self._over
        try:
            head = self._head()
            for target in decoder.announce(head):
                self._fill(memoryview(target))
            return decoder.complete()
        except TimeoutError:
            self._over = Unreachable("an answer may still come", peer=self._name)
            raise DeadlineExceeded(
                f"{self._name} did not answer in time", peer=self._name
            ) from None
        except OSError as error:
            self._over = Unreachable(f"{self._name}: {error}", peer=self._name)
            raise self._over from None

    def read(self) -> bytes | None:
        raise AssertionError("an answer on a stream is received whole")

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)

    @property
    def _name(self) -> str:
        return f"server {self._stream.endpoint}"

    def _head(self) -> bytes:
        first = bytearray(HEAD)
        self._fill(memoryview(first))
        rest = bytearray(rest_of_head(first))
        self._fill(memoryview(rest))
        return bytes(first + rest)

    def _fill(self, target: memoryview) -> None:
        opened, ahead = self._stream.socket, self._stream.ahead
        at = ahead.take(target)
        straight = len(target) - at > _BUFFER
        while at < len(target):
            opened.settimeout(max(1e-3, self._until - time.monotonic()))
            if straight:
                _wake_at(opened, min(_WAKE, len(target) - at))
                size = opened.recv_into(target[at:])
                if not size:
                    raise ConnectionResetError("the connection ended")
                at += size
            else:
                ahead.came(opened.recv_into(ahead.memory))
                at += ahead.take(target[at:])
        if straight:
            _wake_at(opened, 1)


class Stream:
    """A trainer's connection to a server's port."""

    def __init__(self, port: int, endpoint: str, incarnation: int) -> None:
        """Connect.

        Raises:
            OSError: the port cannot be reached from here, or is somebody else's.
        """
        host = endpoint.rpartition(":")[0].strip("[]")
        self.endpoint = endpoint
        self.ahead = _Ahead()
        self.socket = socket.create_connection((host, port), timeout=CONNECT)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(incarnation)
        except OSError:
            self.socket.close()
            raise
        self.writer = _Writer(self.socket)

    def _greet(self, incarnation: int) -> None:
        heard = b""
        while len(heard) < _GREETING.size:
            part = self.socket.recv(_GREETING.size - len(heard))
            if not part:
                raise ConnectionResetError("the connection ended")
            heard += part
        if _GREETING.unpack(heard) != (_MAGIC, incarnation):
            raise ConnectionRefusedError("another server listens there")

    def fileno(self) -> int:
        """What becomes readable when an answer comes, or the connection ends."""
        return self.socket.fileno()

    def exchange(self, timeout: float) -> StreamExchange:
        """The next exchange; the one before it must be over."""
        return StreamExchange(self, timeout)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.writer.close()
        self.socket.close()
