"""Sockets of a job: binding, connecting, and proving who is there before the first frame.

Between processes of one host an abstract Unix socket serves, between hosts TCP. Any process of
any user can reach either, so whoever connects presents a key that was told to it over an
authenticated way, and a Unix peer must belong to the same user. Nothing is read from a stranger
but the greeting. What travels afterwards is not known here.
"""

import contextlib
import errno
import hmac
import os
import socket
import struct
import time
from collections.abc import Iterable
from typing import Protocol

from bireme import flags
from bireme.errors import ConfigError
from bireme.job_token import check_address

from . import tls
from .descriptors import claim
from .ports import reserved_ports
from .tls_sockets import Handshake, TlsSocket, secured

__all__ = [
    "BUFFER",
    "GREETING",
    "GREETING_SECONDS",
    "KEY",
    "RETRY_SECONDS",
    "Handshake",
    "Held",
    "accept",
    "bind",
    "cannot_listen",
    "connect_tcp",
    "connect_unix",
    "greet",
    "greeting",
    "handshake",
    "has_room",
    "is_known",
    "is_trusted",
    "key_of",
    "new_key",
    "peer_of",
    "process_of",
    "read_exactly",
    "reply",
    "unix_name",
    "verify",
]

KEY = 16  # bytes
_MAGIC = b"BIREME3\n"
_GREETING = struct.Struct(f"<8s{KEY}s")
_REPLY = struct.Struct("<8sQ")
GREETING = _GREETING.size
GREETING_SECONDS = 5.0  # for a peer to present its key
RETRY_SECONDS = 0.5  # until the next accept when descriptors have run out
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BUFFER = 4 << 20  # bytes of a socket's buffers: a window of data in flight


def new_key() -> bytes:
    """A secret for one server or one group."""
    return os.urandom(KEY)


def unix_name() -> str:
    """A free name for an abstract Unix socket; it ends with its process and leaves no file."""
    return f"\0bireme-{os.getpid()}-{os.urandom(6).hex()}"


def bind(endpoint: str) -> socket.socket:
    """A TCP socket bound to `host:port`, port 0 meaning any free one; not yet listening.

    A port that the launcher holds for this process is shared with it; any other taken port is
    refused.

    Raises:
        ConfigError: the port is in use, the address not this machine's, or nothing would protect
            it there.
    """
    check_address(endpoint)
    tls.context(server=True)  # certificates that cannot be used are an error now, not later
    claim()
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if int(port) in reserved_ports():
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, int(port)))
    except OSError as error:
        bound.close()
        raise cannot_listen(endpoint, str(error.strerror)) from None
    return bound


def cannot_listen(endpoint: str, reason: str) -> ConfigError:
    """The error for an endpoint that cannot be had."""
    return ConfigError(
        f"cannot listen on {endpoint}: {reason}",
        hint="choose another endpoint, or end the process that holds the port (`ss -ltnp`)",
    )


# -- connecting --------------------------------------------------------------------------------
def connect_unix(name: str, timeout: float) -> socket.socket:
    """Connect to an abstract Unix socket.

    Raises:
        OSError: nobody listens there, or the peer is another user's process.
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(timeout)
        made.connect(name)
        if not is_trusted(made):
            raise ConnectionRefusedError("the socket belongs to another user")
    except OSError:
        made.close()
        raise
    return made


def connect_tcp(endpoint: str, timeout: float) -> socket.socket:
    """Connect to `host:port`, without Nagle's delay; by TLS if this process has a certificate.

    Raises:
        OSError: it cannot be reached in time.
    """
    made = _dial(endpoint, timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = tls.context(server=False)
    if context is None:
        return made
    return secured(made, context, str(flags.get("tls_name")), timeout)


def _dial(endpoint: str, timeout: float) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


def is_known(host: str) -> bool:
    """Whether a host's name has an address, as this machine knows."""
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), None))
    except (OSError, UnicodeError):
        return False


def greet(connected: socket.socket, key: bytes, life: int, timeout: float) -> None:
    """Present `key`, and check that the peer is the process that we expect.

    Raises:
        OSError: it is another process, refuses us, or does not answer in time.
    """
    connected.settimeout(timeout)
    connected.sendall(greeting(key))
    magic, found = _REPLY.unpack(read_exactly(connected, _REPLY.size, timeout))
    if magic != _MAGIC or found != life:
        raise ConnectionRefusedError("another process listens there")


# -- accepting ---------------------------------------------------------------------------------
def accept(listening: socket.socket) -> socket.socket | None:
    """The next connection of a listening socket; None if it is gone or not to be trusted.

    Raises:
        OSError: descriptors have run out; accept again after RETRY_SECONDS.
    """
    try:
        accepted, _ = listening.accept()
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise
        return None
    if not is_trusted(accepted):
        accepted.close()
        return None
    return accepted


def handshake(accepted: socket.socket) -> Handshake | None:
    """What must succeed before the peer's first byte counts; None on Unix sockets, and without
    certificates.
    """
    context = None if accepted.family == socket.AF_UNIX else tls.context(server=True)
    if context is None:
        return None
    return Handshake(accepted, context, str(flags.get("tls_name")), server=True)


class Held(Protocol):
    """A connection that has been accepted."""

    peer: str
    known: bool  # it has presented the key

    def close(self) -> None: ...


def has_room(held: Iterable[Held], peer: str) -> bool:
    """Whether `peer` may have another connection. `held` come in the order of their arrival: where
    `peer` has as many as it may, its first that is not known yet is closed for the new one.
    """
    same = [one for one in held if one.peer == peer]
    if len(same) < flags.get("rpc_connections_per_peer"):
        return True
    for one in same:
        if not one.known:
            one.close()
            return True
    return False


def is_trusted(connected: socket.socket) -> bool:
    """Whether a Unix peer runs as our own user (SO_PEERCRED); TCP peers have only their key."""
    if connected.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return True
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1]) == os.getuid()


def peer_of(connected: socket.socket) -> str:
    """What connections are counted by: a process of this host, or another host's address."""
    if isinstance(connected, TlsSocket):
        return connected.peer
    if connected.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            return str(connected.getpeername()[0])
        return ""
    process = process_of(connected)
    return f"process {process}" if process else "this host"


def process_of(connected: socket.socket) -> int:
    """The process that has connected, if it is one of this host's in sight; else 0."""
    remote = connected.family != socket.AF_UNIX or isinstance(connected, TlsSocket)
    if remote or not hasattr(socket, "SO_PEERCRED"):
        return 0
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[0])


def greeting(key: bytes) -> bytes:
    """The first GREETING bytes of a connection."""
    return _GREETING.pack(_MAGIC, key)


def key_of(received: bytes) -> bytes | None:
    """The key that these first bytes present; None if they are no greeting."""
    magic, shown = _GREETING.unpack(received)
    return shown if magic == _MAGIC else None


def verify(received: bytes, key: bytes) -> bool:
    """Whether these first bytes present `key`."""
    shown = key_of(received)
    return shown is not None and hmac.compare_digest(shown, key)


def reply(life: int) -> bytes:
    """The answer to a greeting that was verified: which life of this process is speaking."""
    return _REPLY.pack(_MAGIC, life)


def read_exactly(connected: socket.socket, size: int, timeout: float) -> bytes:
    """`size` bytes, within `timeout` seconds in all.

    Raises:
        OSError: the connection ended, or the time.
    """
    until = time.monotonic() + timeout
    data = b""
    while len(data) < size:
        connected.settimeout(max(1e-3, until - time.monotonic()))
        part = connected.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the connection ended")
        data += part
    return data
