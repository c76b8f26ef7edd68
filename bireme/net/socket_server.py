"""Frames over sockets, the server's end: it accepts connections and serves each peer's frames.

Everything runs as callbacks of one event loop. Bytes go from the socket into the arrays that they
belong to, and from arrays into the socket. A connection costs one small buffer; while its answer
is awaited it reads no further. What the frames mean is not known here.
"""

import asyncio
import contextlib
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Generator, Sequence

from bireme.errors import ConfigError, ProtocolError
from bireme.logs import logger

from . import messages as m
from . import sockets
from .carriers import Handler, refused
from .frames import Buffer, Received
from .memory import available

__all__ = ["accepting"]

_log = logger("net")

GRACE = 1.0  # seconds for answers under way when the server ends
_BUFFER = 64 << 10  # bytes read ahead; larger arrays are read in place
_WAKE = 512 << 10  # bytes of a large array that are worth waking up for
_AT_ONCE = 64  # buffers handed to one system call


class _Listener:
    """Listening sockets and the connections that they have accepted."""

    def __init__(self, handler: Handler, life: int) -> None:
        self.handler = handler
        self.life = life
        self.open: dict[_Channel, None] = {}  # in the order of their arrival
        self._listening: list[socket.socket] = []
        self._exhausted = False  # no descriptor was free for the last connection
        self._loop = asyncio.get_running_loop()

    def add(self, bound: socket.socket) -> None:
        bound.setblocking(False)
        bound.listen(128)
        self._listening.append(bound)
        self._loop.add_reader(bound, self._accept, bound)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted = sockets.accept(listening)
        except OSError as error:
            self._pause(listening, error)
            return
        self._exhausted = False
        if accepted is None:
            return
        if sockets.has_room(list(self.open), sockets.peer_of(accepted)):
            self.open[_Channel(self, accepted)] = None
        else:
            accepted.close()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        if not self._exhausted:
            _log.warning("cannot accept a connection: %s", error.strerror)
        self._exhausted = True
        self._loop.remove_reader(listening)
        self._loop.call_later(sockets.RETRY_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._accept, listening)

    async def close(self) -> None:
        """Accept nobody more, let answers under way finish, close every connection."""
        for listening in self._listening:
            self._loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        if tasks := [channel.task for channel in self.open if channel.task is not None]:
            await asyncio.wait(tasks, timeout=GRACE)
        for channel in list(self.open):
            channel.close()


class _Channel:
    """One connection: TLS where there is a certificate, a greeting, then frames."""

    def __init__(self, listener: _Listener, accepted: socket.socket) -> None:
        self.task: asyncio.Task[None] | None = None  # what awaits an answer
        self._listener = listener
        self._socket = accepted
        self._connection = listener.handler.connect(self.hang_up)
        self.peer = sockets.peer_of(accepted)
        self.known = False
        self._loop = asyncio.get_running_loop()
        self._ahead = memoryview(bytearray(sockets.GREETING))  # all that a stranger is given
        self._begin = self._end = 0  # what of it has not been used yet
        self._parser = self._parse()
        self._target, self._filled = next(self._parser), 0
        self._out: deque[memoryview] = deque()
        self._writing = False  # waits for room in the socket
        self._ends = False  # close once everything has been sent
        self._reset = False  # the peer has ended it
        self._stopped = False  # reads no further until its answer has gone
        self._wakes = 1  # bytes that wake the reader
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer = self._loop.call_later(sockets.GREETING_SECONDS, self.close)
        self._handshake = sockets.handshake(accepted)  # the TLS before the greeting
        self._loop.add_reader(accepted, self._shake if self._handshake else self._readable)

    def close(self) -> None:
        """End the connection, and what it waits for. Safe to repeat."""
        if self not in self._listener.open:
            return
        del self._listener.open[self]
        self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._handshake = None
        with contextlib.suppress(ValueError):  # it is running
            self._parser.close()  # refers to this channel, which must not wait for the collector
        if self.task is not None:
            self.task.cancel()
        self._connection.end(reset=self._reset)

    def hang_up(self) -> None:
        """End the connection unless an answer is under way."""
        if self.task is None:
            self._ends = True
            self._flush()

    def _lose(self) -> None:
        """The peer has ended the connection."""
        self._reset = True
        self.close()

    # -- reading ---------------------------------------------------------------------------
    def _shake(self) -> None:
        """Go on with the handshake; afterwards read what it protects."""
        assert self._handshake is not None
        try:
            made = self._handshake.step()
        except OSError:
            self.close()
            return
        if made is not None:
            self._loop.remove_reader(self._socket)
            self._socket, self._handshake = made, None
            made.setblocking(False)
            self._loop.add_reader(made, self._readable)

    def _parse(self) -> Generator[memoryview, None, None]:
        """Yields what is to be filled next, and hears each frame when it is whole."""
        first = bytearray(sockets.GREETING)
        yield memoryview(first)
        key = sockets.key_of(bytes(first))
        if key is None or not self._connection.admit(key):
            raise ProtocolError("not a connection of this job")
        self.known = True
        self._timer.cancel()
        self._send([sockets.reply(self._listener.life)])
        self._read_ahead()
        for wanted in self._connection.decoder.frames():
            if isinstance(wanted, Received):
                self._hear(wanted)
            else:
                yield wanted

    def _read_ahead(self) -> None:
        """Take in more at a time, now that the peer is known."""
        rest = self._ahead[self._begin : self._end]
        self._ahead = memoryview(bytearray(_BUFFER))
        self._ahead[: len(rest)] = rest
        self._begin, self._end = 0, len(rest)

    def _readable(self) -> None:
        direct = self._is_direct()
        if self.task is not None and self._begin < self._end:
            self._stopped = True  # a peer that does not wait for its answer waits for us
            self._loop.remove_reader(self._socket)
            return
        try:
            size = self._socket.recv_into(self._target[self._filled :] if direct else self._ahead)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if not size:
            self._lose()
        elif direct:
            self._filled += size
            self._use()
        else:
            self._begin, self._end = 0, size
            self._use()

    def _is_direct(self) -> bool:
        """Whether the next bytes go straight into a large array."""
        left = len(self._target) - self._filled
        return self.task is None and self._begin == self._end and left > _BUFFER

    def _use(self) -> None:
        """Move what was read where it belongs, as far as it goes."""
        try:
            while self.task is None:
                if self._filled == len(self._target):
                    self._target, self._filled = next(self._parser), 0
                elif not self._copy():
                    left = len(self._target) - self._filled
                    self._wake_at(min(_WAKE, left) if self._is_direct() else 1)
                    return
        except Exception as error:  # bytes from outside must not end in a silent connection
            self._refuse(error)

    def _copy(self) -> int:
        size = min(len(self._target) - self._filled, self._end - self._begin)
        target, source = self._filled, self._begin
        self._target[target : target + size] = self._ahead[source : source + size]
        self._filled += size
        self._begin += size
        return size

    def _wake_at(self, size: int) -> None:
        """Wake up for `size` bytes at least, where the system can do that."""
        if size != self._wakes and sys.platform == "linux":
            self._wakes = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    # -- answering -------------------------------------------------------------------------
    def _hear(self, received: Received) -> None:
        waiting = self._connection.hear(received)
        if waiting is not None:
            self.task = self._loop.create_task(self._answer(waiting))

    async def _answer(self, waiting: Awaitable[Sequence[Buffer]]) -> None:
        try:
            self._send(await waiting)
        except Exception as error:  # a fault of ours must not end in a silent connection
            self._refuse(error)
        self.task = None
        if self in self._listener.open:
            if self._stopped:
                self._stopped = False
                self._loop.add_reader(self._socket, self._readable)
            self._use()

    def _refuse(self, error: Exception) -> None:
        self._ends = True
        self._loop.remove_reader(self._socket)
        self._send([refused(error)])

    def _send(self, parts: Sequence[Buffer]) -> None:
        self._out += [memoryview(part) for part in parts if len(part)]
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._sent(self._socket.sendmsg([*self._out][:_AT_ONCE]))
        except BlockingIOError:
            self._writing = True
            self._loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            self._lose()
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket)
        if self._ends:
            self.close()

    def _sent(self, size: int) -> None:
        while self._out and size >= len(self._out[0]):
            size -= len(self._out.popleft())
        if size:
            self._out[0] = self._out[0][size:]


@contextlib.asynccontextmanager
async def accepting(
    handler: Handler, endpoint: str, life: int
) -> AsyncIterator[tuple[m.Offer, ...]]:
    """Take connections that present a key which the handler admits: on a Unix socket for processes
    of this host, and on a free port of the endpoint's host. Gives what a welcome may offer, best
    first.
    """
    listener = _Listener(handler, life)
    offered: list[m.Offer] = []
    if available():
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(name := sockets.unix_name())
        listener.add(unix)
        offered.append(m.UnixSocket(name))
    with contextlib.suppress(ConfigError):  # without a port gRPC does the work
        tcp = sockets.bind(f"{endpoint.rpartition(':')[0]}:0")
        listener.add(tcp)
        offered.append(m.TcpPort(tcp.getsockname()[1]))
    try:
        yield tuple(offered)
    finally:
        await listener.close()
