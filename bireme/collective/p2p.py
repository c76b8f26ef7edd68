"""Point-to-point messages of one group: tagged, in order per sender and tag.

They have connections of their own, so that messages and collectives never mix.
"""

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import DeadlineExceeded

from .group import check_message, message_label
from .transfers import FailureDetector, Transfer, exchange

__all__ = ["PointToPoint"]

_HEAD = struct.Struct("<qQ112s")  # tag, bytes, dtype and shape


@dataclass(frozen=True)
class _Wait:
    """The guard of one send or receive."""

    job: FailureDetector
    members: Sequence[int]
    what: str
    until: float

    def check(self, awaited: Sequence[int]) -> None:
        self.job.check()
        if time.monotonic() > self.until:
            names = ", ".join(f"rank {self.members[r]}" for r in awaited)
            text = f"{self.what} {names} took longer than {self.job.timeout:.0f} s"
            raise DeadlineExceeded(text, peer=names, hint="is there a matching call on that rank?")

    def lost(self, peer: int) -> Exception:
        return self.job.lost(self.members[peer])


class PointToPoint:
    """Sends and receives for one rank; `members[r]` is the number in the job of rank r."""

    def __init__(
        self,
        job: FailureDetector,
        rank: int,
        members: Sequence[int],
        connections: dict[int, socket.socket],
    ) -> None:
        self._job = job
        self._rank = rank
        self._members = members
        self._connections = connections
        self._early: deque[tuple[int, int, bytes, Array]] = deque()  # of other tags
        self._sending = {peer: threading.Lock() for peer in connections}
        self._receiving = threading.Lock()

    def send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        head = _HEAD.pack(tag, flat.nbytes, _label(flat, shape))
        with self._sending[to]:
            exchange({to: Transfer(self._connections[to], [head, flat])}, self._wait("sending to"))

    def recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        sources = list(self._connections) if source is None else [source]
        wait = self._wait("receiving from")
        with self._receiving:
            for message in self._early:
                sender, its_tag, label, body = message
                if its_tag == tag and sender in sources:
                    self._early.remove(message)
                    self._compare(sender, label, _label(flat, shape))
                    flat[...] = body.view(flat.dtype)
                    return sender
            return self._read(flat, _label(flat, shape), sources, tag, wait)

    def _read(
        self, flat: Array, wanted: bytes, sources: Sequence[int], tag: int, wait: _Wait
    ) -> int:
        while True:
            sender = sources[0] if len(sources) == 1 else self._readable(sources, wait)
            head = bytearray(_HEAD.size)
            self._pull(sender, head, wait)
            its_tag, size, label = _HEAD.unpack(head)
            if its_tag == tag:
                self._compare(sender, label.rstrip(b"\0"), wanted)
                self._pull(sender, flat, wait)
                return sender
            body = np.empty(size, np.uint8)
            self._pull(sender, body, wait)
            self._early.append((sender, its_tag, label.rstrip(b"\0"), body))

    def _readable(self, sources: Sequence[int], wait: _Wait) -> int:
        poll = select.poll()
        by_handle = {self._connections[r].fileno(): r for r in sources}
        for handle in by_handle:
            poll.register(handle, select.POLLIN)
        while True:
            ready = poll.poll(200)
            if ready:
                return by_handle[ready[0][0]]
            wait.check(sources)

    def _pull(self, sender: int, buffer: bytearray | Array, wait: _Wait) -> None:
        exchange({sender: Transfer(self._connections[sender], (), [buffer])}, wait)

    def _wait(self, what: str) -> _Wait:
        until = time.monotonic() + self._job.timeout
        return _Wait(self._job, self._members, what, until)

    def _compare(self, sender: int, label: bytes, wanted: bytes) -> None:
        ranks = self._members
        check_message(ranks[sender], label.decode(), ranks[self._rank], wanted.decode())


def _label(flat: Array, shape: tuple[int, ...]) -> bytes:
    return message_label(flat, shape).encode()[:112]
