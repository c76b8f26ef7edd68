"""A way in for processes of one host: a Unix socket that carries brief exchanges, each as one
message either way. A call of gRPC costs several times as much as the work of a small step.

The socket's name is abstract: it ends with its process and leaves no file. Both ends are here;
what the pieces mean is not known. A door that breaks is not mended: the peers greet each other
again over gRPC, and open another.
"""

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import AsyncIterator

from bireme.errors import DeadlineExceeded

from .codec import pack, unpack
from .wire import Service, Unreachable

__all__ = ["Door", "DoorExchange", "opened"]

_LENGTH = struct.Struct("<Q")
GRACE = 1.0  # seconds for answers under way when a server ends
_LARGEST = 1 << 30  # bytes of one message; payloads of size lie in shared memory


# -- the server's end --------------------------------------------------------------------------
class _Visit(asyncio.Protocol):
    """One trainer at the door. It asks one thing after the other; losing it cancels what waits."""

    def __init__(self, service: Service, visits: "set[_Visit]") -> None:
        self._service = service
        self._visits = visits
        self._heard = bytearray()
        self.tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._visits.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._visits.discard(self)
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._heard += data
        while len(self._heard) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._heard)
            if size > _LARGEST:
                assert self._transport is not None
                self._transport.abort()
                return
            end = _LENGTH.size + size
            if len(self._heard) < end:
                return
            request = bytes(self._heard[_LENGTH.size : end])
            del self._heard[:end]
            task = asyncio.get_running_loop().create_task(self._answer(request))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def end(self) -> None:
        """Close the connection once what was written has left."""
        assert self._transport is not None
        self._transport.close()

    async def _answer(self, request: bytes) -> None:
        pieces = [piece async for piece in self._service.exchange(each(request))]
        answer = pack(pieces)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_LENGTH.pack(len(answer)) + answer)


async def each(packed: bytes) -> AsyncIterator[bytes]:
    """The pieces of a packed message, as a stream."""
    for piece in unpack(packed):
        yield piece


@contextlib.asynccontextmanager
async def opened(service: Service) -> AsyncIterator[str]:
    """Let trainers of this host in; gives the door's name, "" where the system has no such door.
    Leaving lets answers under way finish.
    """
    if not hasattr(os, "memfd_create"):
        yield ""
        return
    name = f"bireme-{os.getpid()}-{time.time_ns():x}"
    loop = asyncio.get_running_loop()
    visits: set[_Visit] = set()
    server = await loop.create_unix_server(lambda: _Visit(service, visits), "\0" + name)
    try:
        yield name
    finally:
        server.close()
        if tasks := [task for visit in visits for task in visit.tasks]:
            await asyncio.wait(tasks, timeout=GRACE)
        for visit in list(visits):
            visit.end()


# -- the trainer's end -------------------------------------------------------------------------
class DoorExchange:
    """One exchange through a door; what is written leaves when it is closed."""

    def __init__(self, opened: socket.socket, timeout: float, endpoint: str) -> None:
        self._socket = opened
        self._until = time.monotonic() + timeout
        self._endpoint = endpoint
        self._waiting: list[bytes] = []
        self._answer: list[bytes] | None = None
        self._broken: Unreachable | None = None

    def write(self, pieces: list[bytes]) -> None:
        self._waiting += pieces

    def close(self) -> None:
        message = pack(self._waiting)
        try:
            self._hurry()
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            self._broken = self._lost(error)

    def read(self) -> bytes | None:
        if self._broken is not None:
            raise self._broken
        if self._answer is None:
            try:
                (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
                self._answer = unpack(self._exactly(size))
            except TimeoutError:
                self._broken = Unreachable("an answer may still come", peer=self._name)
                raise DeadlineExceeded(
                    f"{self._name} did not answer in time", peer=self._name
                ) from None
            except OSError as error:
                self._broken = self._lost(error)
                raise self._broken from None
            self._answer.reverse()
        return self._answer.pop() if self._answer else None

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def _name(self) -> str:
        return f"server {self._endpoint}"

    def _hurry(self) -> None:
        self._socket.settimeout(max(1e-3, self._until - time.monotonic()))

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            self._hurry()
            part = self._socket.recv(min(size, 1 << 20))
            if not part:
                raise ConnectionResetError("the connection ended")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _lost(self, error: OSError) -> Unreachable:
        return Unreachable(f"{self._name}: {error}", peer=self._name)


class Door:
    """A trainer's connection through a server's door."""

    def __init__(self, name: str, endpoint: str) -> None:
        """Connect.

        Raises:
            OSError: the door cannot be reached from here.
        """
        self._endpoint = endpoint
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect("\0" + name)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """What becomes readable when an answer comes, or the connection ends."""
        return self._socket.fileno()

    def exchange(self, timeout: float) -> DoorExchange:
        """The next exchange; the one before it must be over."""
        return DoorExchange(self._socket, timeout, self._endpoint)

    def close(self) -> None:
        self._socket.close()
