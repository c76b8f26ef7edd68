"""Strangers at the servers of a job: connections that stay idle, and others that send a byte now
and then.

`python strangers.py COUNT SECONDS PID ...` opens COUNT idle and COUNT dripping connections at every
port and Unix socket on which the processes PID listen, prints a line when all have been opened, and
then opens each again that was closed, while somebody listens, until it is terminated. A dripping
connection sends a byte every SECONDS: the beginning of a valid greeting, so that nobody can tell
it from a slow member.
"""

import contextlib
import errno
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

FROM = "127.0.0.2"  # not a member's address
FIRST_BYTES = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"BIREME3\n",
    b"\x16\x03\x01\x02\0\x01\0\x01\xfc",
)
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
    for line in _table("/proc/net/tcp"):
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


class Stranger:
    """One connection, and its next one when it is closed."""

    def __init__(self, place: Place, drips: bool, selector: selectors.BaseSelector) -> None:
        self.drips = drips
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
            self._socket.bind((FROM, 0))
            address = ("127.0.0.1", self._place.port)
        self._socket.setblocking(False)
        if self._socket.connect_ex(address) in (0, errno.EINPROGRESS, errno.EAGAIN):
            self._selector.register(self._socket, selectors.EVENT_READ, self)
        else:
            self._socket.close()  # the job has ended

    def drip(self) -> None:
        """Send the next byte."""
        with contextlib.suppress(OSError):
            at = self._sent % len(self._bytes)
            self._sent += self._socket.send(self._bytes[at : at + 1])

    def read(self) -> None:
        """Something has come, or the end."""
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
    count, seconds, *pids = sys.argv[1:]
    selector = selectors.DefaultSelector()
    strangers = [
        Stranger(place, drips, selector)
        for pid in pids
        for place in places(int(pid))
        for drips in (False, True)
        for _ in range(int(count))
    ]
    print(f"{len(selector.get_map())} connections", flush=True)
    dripping = [stranger for stranger in strangers if stranger.drips]
    number, began = 0, time.monotonic()
    while True:
        due = began + number * float(seconds) / len(dripping)
        for key, _ in selector.select(max(0.0, due - time.monotonic())):
            key.data.read()
        if time.monotonic() >= due:
            dripping[number % len(dripping)].drip()
            number += 1


if __name__ == "__main__":
    main()
