"""Connections between ranks: one listener per process, and dialling another rank's.

Each connection serves one purpose: a channel of one group. What travels on it is not known here.
"""

import contextlib
import hashlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from bireme.errors import DeadlineExceeded, PeerLost
from bireme.logs import logger
from bireme.net import sockets
from bireme.net.processes import host_id

__all__ = ["Address", "Listener", "Purpose", "connect"]

_log = logger("collective")

_CLOSING = 1.0  # seconds until the listening thread must have ended
_TICK = 0.2  # seconds between two looks at what else may have happened
_PURPOSE = struct.Struct("<I16s")  # rank, digest of channel and group


class Address(msgspec.Struct):
    """How to reach a rank. Equal `host` means that the Unix socket can be reached."""

    host: str
    unix: str
    tcp: str
    life: int


class Purpose(msgspec.Struct, frozen=True):
    """What a connection is for, and the rank that opened it."""

    group: str
    rank: int
    channel: str

    def encode(self) -> bytes:
        """Fixed size, so that a listener reads a bounded number of bytes."""
        named = f"{self.channel} {self.group}".encode()
        return _PURPOSE.pack(self.rank, hashlib.blake2b(named, digest_size=16).digest())


# -- accepting ---------------------------------------------------------------------------------
class _Arrival:
    """A connection that has not been taken: TLS where there is a certificate, then the key, then
    its purpose.
    """

    def __init__(self, accepted: socket.socket, selector: selectors.BaseSelector) -> None:
        accepted.setblocking(False)
        self.socket = accepted
        self.peer = sockets.peer_of(accepted)
        self.known = False
        self.until = time.monotonic() + sockets.GREETING_SECONDS
        self._received = b""
        self._handshake = sockets.handshake(accepted)
        self._selector = selector
        selector.register(accepted, selectors.EVENT_READ, self)

    def read(self, key: bytes, life: int) -> bytes | None:
        """The encoded purpose once it is complete; nothing more is read then.

        Raises:
            OSError: the connection ended, or it does not present the key.
        """
        if self._handshake is not None:
            self._shake(self._handshake)
            return None
        wanted = _PURPOSE.size if self.known else sockets.GREETING
        part = self.socket.recv(wanted - len(self._received))
        if not part:
            raise ConnectionResetError("the connection ended")
        self._received += part
        if len(self._received) < wanted:
            return None
        if self.known:
            self._selector.unregister(self.socket)
            return self._received
        if not sockets.verify(self._received, key):
            raise ConnectionRefusedError("wrong key")
        self.socket.sendall(sockets.reply(life))
        self._received, self.known = b"", True
        return None

    def _shake(self, handshake: sockets.Handshake) -> None:
        if (made := handshake.step()) is not None:
            self._selector.unregister(self.socket)
            self.socket, self._handshake = made, None
            made.setblocking(False)
            self._selector.register(made, selectors.EVENT_READ, self)

    def close(self) -> None:
        """End it before it was taken."""
        with contextlib.suppress(KeyError, ValueError):  # its purpose has been read, or closed
            self._selector.unregister(self.socket)
        self.socket.close()


class Listener:
    """Accepts connections for every group of this process; `take` hands them out."""

    def __init__(self, endpoint: str) -> None:
        """Bind `endpoint` and a Unix socket; connections queue up until `open`.

        Raises:
            ConfigError: the endpoint's port is in use.
        """
        self._ready: dict[bytes, _Arrival] = {}
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._exhausted = False  # no descriptor was free for the last connection
        self._key = b""
        tcp = sockets.bind(endpoint)
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(name := sockets.unix_name())
        self._listening = (unix, tcp)
        for each in self._listening:
            each.setblocking(False)
            each.listen(128)
        host = endpoint.rpartition(":")[0]
        life = int.from_bytes(os.urandom(8), "little")
        self.address = Address(host_id(), name, f"{host}:{tcp.getsockname()[1]}", life)
        self._thread = threading.Thread(target=self._serve, name="bireme-accept", daemon=True)

    def open(self, key: bytes) -> None:
        """From now on accept connections that present the job's key."""
        self._key = key
        self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._listening:
                selector.register(each, selectors.EVENT_READ)
            while not self._closed.is_set():
                for ready, _ in selector.select(_TICK):
                    if ready.data is None:
                        self._accept(ready.fileobj, selector)
                    else:
                        self._greet(ready.data)
                self._drop_late(selector)
            for key in list(selector.get_map().values()):
                _socket(key.fileobj).close()

    def _accept(self, listening: object, selector: selectors.BaseSelector) -> None:
        try:
            accepted = sockets.accept(_socket(listening))
        except OSError as error:
            if not self._exhausted:
                _log.warning("cannot accept a connection: %s", error.strerror)
            self._exhausted = True
            self._closed.wait(sockets.RETRY_SECONDS)
            return
        self._exhausted = False
        if accepted is None:
            return
        with self._changed:
            held = [*_arrivals(selector), *self._ready.values()]
        if sockets.has_room(held, sockets.peer_of(accepted)):
            _Arrival(accepted, selector)
        else:
            accepted.close()

    def _greet(self, arrival: _Arrival) -> None:
        try:
            purpose = arrival.read(self._key, self.address.life)
        except BlockingIOError:
            return
        except OSError:
            arrival.close()
            return
        if purpose is not None:
            with self._changed:
                former = self._ready.pop(purpose, None)
                self._ready[purpose] = arrival
                self._changed.notify_all()
            if former is not None:
                former.close()

    def _drop_late(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for arrival in _arrivals(selector):
            if now > arrival.until:
                arrival.close()

    def take(self, purpose: Purpose, deadline: float, check: Callable[[], None]) -> socket.socket:
        """The connection that its rank opened for `purpose`; `check` may raise.

        Raises:
            DeadlineExceeded: it was not opened in time.
        """
        wanted, peer = purpose.encode(), f"rank {purpose.rank}"
        with self._changed:
            while wanted not in self._ready:
                check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(f"{peer} did not connect in time", peer=peer)
                self._changed.wait(min(left, _TICK))
            return _tuned(self._ready.pop(wanted).socket)

    def close(self) -> None:
        """Free the endpoint, and what nobody has taken."""
        self._closed.set()
        for each in self._listening:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread
        if self._thread.ident is not None:
            self._thread.join(_CLOSING)
        for each in self._listening:
            each.close()
        for arrival in self._ready.values():
            arrival.close()


def _arrivals(selector: selectors.BaseSelector) -> list[_Arrival]:
    """Those that are still being read, in the order of their arrival."""
    return [key.data for key in selector.get_map().values() if key.data is not None]


def _socket(found: object) -> socket.socket:
    assert isinstance(found, socket.socket)
    return found


# -- connecting --------------------------------------------------------------------------------
def connect(
    address: Address, key: bytes, purpose: Purpose, peer: str, deadline: float
) -> socket.socket:
    """Connect to the rank at `address`, by its Unix socket if that can be reached.

    Raises:
        DeadlineExceeded: it did not answer in time.
        PeerLost: nobody listens there, or another process does.
    """
    timeout = max(0.1, deadline - time.monotonic())
    try:
        if address.host == host_id():
            made = sockets.connect_unix(address.unix, timeout)
        else:
            made = sockets.connect_tcp(address.tcp, timeout)
        with contextlib.ExitStack() as undo:
            undo.callback(made.close)
            sockets.greet(made, key, address.life, max(0.1, deadline - time.monotonic()))
            made.sendall(purpose.encode())
            undo.pop_all()
    except TimeoutError:
        raise DeadlineExceeded(f"{peer} did not accept a connection in time", peer=peer) from None
    except OSError as error:
        raise PeerLost(f"{peer} accepts no connection: {error}", peer=peer) from None
    return _tuned(made)


def _tuned(connected: socket.socket) -> socket.socket:
    connected.setblocking(False)
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connected.setsockopt(socket.SOL_SOCKET, option, sockets.BUFFER)
    return connected
