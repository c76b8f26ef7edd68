"""TLS around a TCP connection, as a plain socket for its user.

A `Handshake` is a few buffers: it goes as far as the bytes that have come, and holds no thread.
Once the peer has shown a certificate of the job, a thread per connection encrypts what is written
to the socket and decrypts what arrives, so that writing from many buffers, reading in place and
duplicating work as on any socket. Which certificates count is `tls`'s matter.
"""

import contextlib
import select
import selectors
import socket
import ssl
import threading
import time

from . import tls

__all__ = ["Handshake", "TlsSocket", "secured"]

_CHUNK = 256 << 10  # bytes read at a time, and held back at most, each way
_BUFFER = 4 << 20
_RECORD = 16 << 10  # bytes read at a time during a handshake


class TlsSocket(socket.socket):
    """The near end of a connection; `peer` is the far end's address."""

    peer: str


class Handshake:
    """The beginning of TLS over `raw`, which reads and writes without blocking from now on."""

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, name: str, *, server: bool
    ) -> None:
        """The peer's certificate must bear `name`."""
        raw.setblocking(False)
        self._raw = raw
        self._name = name
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server = server
        shown = None if server else name
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server, shown)

    def step(self) -> TlsSocket | None:
        """Use what has come. Gives the socket to use in place of `raw`, which then belongs to it,
        when both sides have shown their certificates.

        Raises:
            OSError: the connection ended, or the peer is not a member.
        """
        self._receive()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return None
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._send()  # TLS's own words about what is wrong with the certificate
            raise
        self._send()
        if self._server:  # a client's TLS compares the name itself
            tls.check_name(self._tls.getpeercert(), self._name)
        return self._opened()

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self._raw.recv(_RECORD)
            if not data:
                raise ConnectionResetError("the connection ended during the TLS handshake")
            self._incoming.write(data)

    def _send(self) -> None:
        """A handshake is smaller than the buffer of a new socket."""
        data = self._outgoing.read()
        if data and self._raw.send(data) < len(data):
            raise ConnectionResetError("the peer does not read the TLS handshake")

    def _opened(self) -> TlsSocket:
        peer = str(self._raw.getpeername()[0])
        near, far = socket.socketpair()
        made = TlsSocket(fileno=near.detach())
        made.peer = peer
        for end in (made, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        tunnel = _Tunnel(self._raw, far, self._tls, self._incoming, self._outgoing)
        threading.Thread(target=tunnel.run, name="tls", daemon=True).start()
        return made


def secured(raw: socket.socket, context: ssl.SSLContext, name: str, timeout: float) -> TlsSocket:
    """Speak TLS over `raw`, which belongs to the returned socket from now on, as the client of a
    server whose certificate bears `name`.

    Raises:
        OSError: the handshake failed, or took longer than `timeout` seconds; `raw` is closed.
    """
    until = time.monotonic() + timeout
    ready = select.poll()
    ready.register(raw, select.POLLIN)
    with contextlib.ExitStack() as undo:
        undo.callback(raw.close)
        handshake = Handshake(raw, context, name, server=False)
        while (made := handshake.step()) is None:
            if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError("the TLS handshake took too long")
        undo.pop_all()
    return made


class _Tunnel:
    """Carries bytes between a connection and a socket pair's far end until either is closed."""

    def __init__(
        self,
        raw: socket.socket,
        plain: socket.socket,
        wrapped: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self._raw, self._plain = raw, plain
        self._tls, self._incoming, self._outgoing = wrapped, incoming, outgoing
        self._read = memoryview(bytearray(_CHUNK))  # what has just come, either way
        self._decrypted = memoryview(bytearray(_CHUNK))
        self._to_raw = self._to_plain = self._read[:0]  # not sent yet
        self._raw_ended = self._plain_ended = False
        self._watched: dict[socket.socket, int] = {}

    def run(self) -> None:
        with selectors.DefaultSelector() as selector, self._raw, self._plain:
            self._plain.setblocking(False)
            with contextlib.suppress(OSError):  # SSLError is one: both ends are closed
                self._step()
                while not self._is_over():
                    self._watch(selector)
                    for key, events in selector.select():
                        self._move(key.fileobj, events)
                    self._step()

    def _is_over(self) -> bool:
        if self._plain_ended:
            return not self._to_raw
        return self._raw_ended and not self._to_plain

    # -- bytes -----------------------------------------------------------------------------
    def _watch(self, selector: selectors.BaseSelector) -> None:
        room = not self._to_plain and not self._raw_ended
        more = not self._to_raw and not self._plain_ended
        self._register(selector, self._raw, room, bool(self._to_raw))
        self._register(selector, self._plain, more, bool(self._to_plain))

    def _register(
        self, selector: selectors.BaseSelector, end: socket.socket, read: bool, write: bool
    ) -> None:
        events = read * selectors.EVENT_READ | write * selectors.EVENT_WRITE
        before = self._watched.get(end, 0)
        if before == events:
            return
        if before:
            selector.unregister(end)
        if events:
            selector.register(end, events)
        self._watched[end] = events

    def _move(self, end: object, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            if end is self._raw:
                self._to_raw = self._to_raw[self._raw.send(self._to_raw) :]
            else:
                self._to_plain = self._to_plain[self._plain.send(self._to_plain) :]
        if not events & selectors.EVENT_READ:
            return
        if end is self._raw:
            size = self._raw.recv_into(self._read)
            self._raw_ended = not size
            self._incoming.write(self._read[:size]) if size else self._incoming.write_eof()
        else:
            size = self._plain.recv_into(self._read)
            self._plain_ended = not size
            if size:
                self._tls.write(self._read[:size])

    # -- TLS -------------------------------------------------------------------------------
    def _step(self) -> None:
        """Go as far as TLS can with what has come, and with what has been sent."""
        try:
            if not self._to_plain:
                self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._raw_ended = True
        if not self._to_raw:
            self._to_raw = memoryview(self._outgoing.read())

    def _decrypt(self) -> None:
        """Fill the buffer of what came; one read gives one record, of 16 KiB at most."""
        size = 0
        try:
            while size < _CHUNK:
                part = int(self._tls.read(_CHUNK, self._decrypted[size:]))
                if not part:
                    self._raw_ended = True  # the peer has said goodbye
                    return
                size += part
        finally:
            self._to_plain = self._decrypted[:size]
