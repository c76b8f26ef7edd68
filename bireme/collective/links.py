"""Byte streams between the ranks: who listens where, who calls whom, and the first words.

A link is a connected, non-blocking socket: an abstract unix socket between processes of one
host, TCP between hosts. Abstract names and anonymous memory leave nothing behind after a kill.
What travels on a link is not known here.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from bireme.errors import ConfigError, DeadlineExceeded, PeerLost
from bireme.rpc.ports import reserved_ports

__all__ = ["Address", "Listener", "connect", "host_id"]

_HELLO_LIMIT = 1024
_BUFFER = 4 << 20  # socket buffers: a window of data in flight


class Address(msgspec.Struct):
    """How to reach a rank: processes with equal `host` meet on the unix name."""

    host: str
    unix: str
    tcp: str


class Hello(msgspec.Struct):
    """The first message on a link, sent by the side that connects."""

    token: str
    group: str
    rank: int
    channel: str


def host_id() -> str:
    """Equal for processes that can share memory: same boot, same network namespace, same user."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.getuid()}"
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"


class Listener:
    """Accepts links for every group of this process, and parks them until a group takes them."""

    def __init__(self, endpoint: str) -> None:
        self.token = ""
        self._parked: dict[tuple[str, int, str], socket.socket] = {}
        self._changed = threading.Condition()
        name = f"bireme-{os.getpid()}-{os.urandom(6).hex()}"
        tcp = _bind(endpoint)
        unix = socket.socket(socket.AF_UNIX)
        unix.bind("\0" + name)
        self._sockets = (unix, tcp)
        host = endpoint.rpartition(":")[0]
        self.address = Address(host_id(), name, f"{host}:{tcp.getsockname()[1]}")
        for each in self._sockets:
            each.listen(128)
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                link, _ = listening.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._greet, args=(link,), daemon=True).start()

    def _greet(self, link: socket.socket) -> None:
        try:
            link.settimeout(5)
            (length,) = struct.unpack("<H", _read(link, 2))
            hello = msgspec.msgpack.decode(_read(link, min(length, _HELLO_LIMIT)), type=Hello)
        except (OSError, EOFError, msgspec.DecodeError):
            link.close()
            return
        self._park(hello, link)

    def _park(self, hello: Hello, link: socket.socket) -> None:
        with self._changed:
            # Our own roster may arrive a moment after the first peer has used it.
            self._changed.wait_for(lambda: self.token, timeout=30)
            if hello.token != self.token:
                link.close()
                return
            with contextlib.suppress(OSError):
                link.sendall(b"\x06")
                self._parked[hello.group, hello.rank, hello.channel] = link
            self._changed.notify_all()

    def open_to(self, token: str) -> None:
        """From now on accept those who know the job's token."""
        with self._changed:
            self.token = token
            self._changed.notify_all()

    def take(
        self, key: tuple[str, int, str], deadline: float, check: Callable[[], None]
    ) -> socket.socket:
        """The link that `key` = (group, rank, channel) opened to us; `check` may raise."""
        with self._changed:
            while key not in self._parked:
                check()
                left = deadline - time.monotonic()
                if left <= 0:
                    peer = f"rank {key[1]}"
                    raise DeadlineExceeded(f"{peer} did not open its link in time", peer=peer)
                self._changed.wait(min(left, 0.2))
            return _tuned(self._parked.pop(key))

    def close(self) -> None:
        for each in self._sockets:
            # shutdown wakes the thread that sits in accept; close alone does not
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._changed:
            for link in self._parked.values():
                link.close()
            self._parked.clear()


def _bind(endpoint: str) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    family = socket.AF_INET6 if ":" in host.strip("[]") else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if int(port) in reserved_ports():
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host.strip("[]"), int(port)))
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"cannot listen on {endpoint}: {error.strerror}",
            hint="choose another endpoint, or end the process that holds the port",
        ) from None
    return listening


def connect(address: Address, hello: Hello, peer: str, deadline: float) -> socket.socket:
    """A link to the rank at `address`; on this host when both can see the unix name."""
    try:
        link = _dial(address, deadline)
        words = msgspec.msgpack.encode(hello)
        link.sendall(struct.pack("<H", len(words)) + words)
        _read(link, 1)
    except TimeoutError:
        raise DeadlineExceeded(f"{peer} did not take a link in time", peer=peer) from None
    except (OSError, EOFError) as error:
        raise PeerLost(f"{peer} takes no link: {error}", peer=peer) from None
    return _tuned(link)


def _dial(address: Address, deadline: float) -> socket.socket:
    timeout = max(0.1, deadline - time.monotonic())
    if address.host == host_id() and address.unix:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(timeout)
        link.connect("\0" + address.unix)
        return link
    host, _, port = address.tcp.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


def _tuned(link: socket.socket) -> socket.socket:
    link.setblocking(False)
    if link.family != socket.AF_UNIX:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        link.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
    return link


def _read(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            raise EOFError("the link was closed during the greeting")
        data += piece
    return data
