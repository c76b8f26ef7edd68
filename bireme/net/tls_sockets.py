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
        self._to_raw, self._to_plain = bytearray(), bytearray()
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
        room = len(self._to_plain) < _CHUNK and not self._raw_ended
        more = self._greeted and len(self._to_raw) < _CHUNK and not self._plain_ended
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
                del self._to_raw[: self._raw.send(self._to_raw)]
            else:
                del self._to_plain[: self._plain.send(self._to_plain)]
        if not events & selectors.EVENT_READ:
            return
        if end is self._raw:
            data = self._raw.recv(_CHUNK)
            self._raw_ended = not data
            self._incoming.write(data) if data else self._incoming.write_eof()
        else:
            data = self._plain.recv(_CHUNK)
            self._plain_ended = not data
            if data:
                self._tls.write(data)

    # -- TLS -------------------------------------------------------------------------------
    def _step(self) -> None:
        """Go as far as TLS can with what has come."""
        try:
            if not self._greeted:
                self._tls.do_handshake()
                self._greeted = True
            while part := self._tls.read(_CHUNK):
                self._to_plain += part
            self._raw_ended = True  # the peer has said goodbye
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._raw_ended = True
            self._tell_why()
        self._to_raw += self._outgoing.read()

    def _tell_why(self) -> None:
        """Let the peer have TLS's own words about what is wrong with its certificate."""
        with contextlib.suppress(OSError):
            self._raw.send(self._outgoing.read())
