"""TLS around a TCP connection, as a plain socket for whoever uses it.

A thread per connection encrypts what is written to the socket and decrypts what arrives, so that
writing from many buffers, reading in place and duplicating work as on any socket. Which
certificates count is `tls`'s matter.
"""

import contextlib
import selectors
import socket
import ssl
import threading

__all__ = ["TlsSocket", "secured"]

_CHUNK = 256 << 10  # bytes read at a time, and held back at most, each way
_BUFFER = 4 << 20


class TlsSocket(socket.socket):
    """The near end of a connection; `peer` is the far end's address."""

    peer: str


def secured(raw: socket.socket, context: ssl.SSLContext, name: str = "") -> TlsSocket:
    """Speak TLS over `raw`, which belongs to the returned socket from now on. With `name` we are
    the client, and the peer's certificate must bear it. A failed handshake ends the connection.
    """
    near, far = socket.socketpair()
    made = TlsSocket(fileno=near.detach())
    made.peer = str(raw.getpeername()[0])
    for end in (made, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = context.wrap_bio(incoming, outgoing, not name, name or None)
    tunnel = _Tunnel(raw, far, wrapped, incoming, outgoing)
    threading.Thread(target=tunnel.run, name="tls", daemon=True).start()
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
        self._greeted = False
        self._raw_ended = self._plain_ended = False
        self._watched: dict[socket.socket, int] = {}

    def run(self) -> None:
        with selectors.DefaultSelector() as selector, self._raw, self._plain:
            self._raw.setblocking(False)
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
        more = self._greeted and not self._to_raw and not self._plain_ended
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
            if not self._greeted:
                self._tls.do_handshake()
                self._greeted = True
            if not self._to_plain:
                self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._raw_ended = True
            self._tell_why()
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

    def _tell_why(self) -> None:
        """Let the peer have TLS's own words about what is wrong with its certificate."""
        with contextlib.suppress(OSError):
            self._raw.send(self._outgoing.read())
