"""Strangers at the servers of a job: connections that stay idle, others that send a byte now and
then, and others that stop in the middle of a TLS handshake.

`python strangers.py [--tcp] MANNERS COUNT SECONDS PID ...` opens COUNT connections of each of the
manners `idle`, `drip` and `half` (with commas between them) at every port and Unix socket on
which the processes PID listen, prints a line when all have been opened, and then opens each again
that was closed, while somebody listens, until it is terminated. A dripping connection sends a
byte every SECONDS: the beginning of a valid greeting, so that nobody can tell it from a slow
member. A half one sends a part of a client's first TLS message at once, or all of it. With --tcp
Unix sockets are left out.
"""

import contextlib
import errno
import itertools
import os
import random
import resource
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

FROM = tuple(f"127.0.0.{last}" for last in range(2, 6))  # not a member's addresses
FIRST_BYTES = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"BIREME3\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc",
)
ADDRESSES = itertools.cycle(FROM)
LISTENING = "0A"  # in /proc/net/tcp


class Place(NamedTuple):
    """Where somebody listens: a port, or the name of a Unix socket."""

    port: int
    name: str = ""


def places(pid: int) -> Iterator[Place]:
    """Where a process listens."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry.path))
    for line in (*_table("/proc/net/tcp"), *_table("/proc/net/tcp6")):  # gRPC is in the second
        words = line.split()
        if words[3] == LISTENING and f"socket:[{words[9]}]" in inodes:
            yield Place(int(words[1].rpartition(":")[2], 16))
    for line in _table("/proc/net/unix"):
        words = line.split()
        if len(words) > 7 and words[7].startswith(f"@bireme-{pid}-"):
            yield Place(0, "\0" + words[7][1:])


def _table(path: str) -> list[str]:
    with open(path) as file:
        return file.readlines()[1:]


def _hello() -> bytes:
    """The first message of a TLS client."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="bireme")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


HELLO = _hello()


class Stranger:
    """One connection, and its next one when it is closed."""

    def __init__(self, place: Place, manner: str, selector: selectors.BaseSelector) -> None:
        self.drips = manner == "drip"
        self._half = manner == "half"
        self._place = place
        self._selector = selector
        self._open()

    def _open(self) -> None:
        self._bytes = random.choice(FIRST_BYTES)
        self._sent = 0
        if self._place.name:
            self._socket = socket.socket(socket.AF_UNIX)
            address: object = self._place.name
        else:
            self._socket = socket.socket()
            self._socket.bind((next(ADDRESSES), 0))
            address = ("127.0.0.1", self._place.port)
        self._socket.setblocking(False)
        if self._socket.connect_ex(address) in (0, errno.EINPROGRESS, errno.EAGAIN):
            events = selectors.EVENT_WRITE if self._half else selectors.EVENT_READ
            self._selector.register(self._socket, events, self)
        else:
            self._socket.close()  # the job has ended

    def drip(self) -> None:
        """Send the next byte."""
        with contextlib.suppress(OSError):
            at = self._sent % len(self._bytes)
            self._sent += self._socket.send(self._bytes[at : at + 1])

    def ready(self, events: int) -> None:
        """It is connected, or something has come, or the end."""
        if events & selectors.EVENT_WRITE:
            self._selector.modify(self._socket, selectors.EVENT_READ, self)
            with contextlib.suppress(OSError):
                self._socket.send(HELLO[: random.choice((5, 100, len(HELLO)))])
            return
        try:
            over = not self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            over = True
        if over:
            self._selector.unregister(self._socket)
            self._socket.close()
            self._open()


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--tcp"]
    manners, count, seconds, *pids = words
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    selector = selectors.DefaultSelector()
    strangers = [
        Stranger(place, manner, selector)
        for pid in pids
        for place in places(int(pid))
        if place.port or "--tcp" not in sys.argv
        for manner in manners.split(",")
        for _ in range(int(count))
    ]
    print(f"{len(selector.get_map())} connections", flush=True)
    dripping = [stranger for stranger in strangers if stranger.drips]
    number, began = 0, time.monotonic()
    while True:
        due = began + number * float(seconds) / max(1, len(dripping))
        for key, events in selector.select(max(0.0, due - time.monotonic())):
            key.data.ready(events)
        if time.monotonic() < due:
            continue
        if dripping:
            dripping[number % len(dripping)].drip()
        number += 1


if __name__ == "__main__":
    main()
