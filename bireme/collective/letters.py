"""Point-to-point messages of one group: tagged, in order per sender and tag.

They travel on links of their own, so that a message and a collective never mix. Knows letters;
does not know who is alive.
"""

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bireme.errors import CollectiveMismatch, DeadlineExceeded
from bireme.runtime.arrays import Array

from .stream import Pending, exchange

__all__ = ["Letters"]

_HEAD = struct.Struct("<qQ112s")  # tag, bytes, dtype and shape


class Surroundings(Protocol):
    timeout: float

    def check(self) -> None: ...
    def lost(self, rank: int) -> Exception: ...


@dataclass(frozen=True)
class _Wait:
    """The guard of one send or receive."""

    world: Surroundings
    members: Sequence[int]
    what: str
    until: float

    def check(self, awaited: Sequence[int]) -> None:
        self.world.check()
        if time.monotonic() > self.until:
            names = ", ".join(f"rank {self.members[r]}" for r in awaited)
            text = f"{self.what} {names} took longer than {self.world.timeout:.0f} s"
            raise DeadlineExceeded(text, peer=names, hint="is there a matching call on that rank?")

    def lost(self, peer: int) -> Exception:
        return self.world.lost(self.members[peer])


class Letters:
    """The post office of one rank."""

    def __init__(
        self,
        world: Surroundings,
        rank: int,
        members: Sequence[int],
        links: dict[int, socket.socket],
    ) -> None:
        self._world = world
        self._rank = rank
        self._members = members
        self._links = links
        self._early: deque[tuple[int, int, bytes, Array]] = deque()  # of other tags
        self._sending = {peer: threading.Lock() for peer in links}
        self._receiving = threading.Lock()

    def send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        head = _HEAD.pack(tag, flat.nbytes, _label(flat, shape))
        with self._sending[to]:
            exchange({to: Pending(self._links[to], [head, flat])}, self._wait("sending to"))

    def recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        sources = list(self._links) if source is None else [source]
        wait = self._wait("receiving from")
        with self._receiving:
            for letter in self._early:
                sender, its_tag, label, body = letter
                if its_tag == tag and sender in sources:
                    self._early.remove(letter)
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
        by_handle = {self._links[r].fileno(): r for r in sources}
        for handle in by_handle:
            poll.register(handle, select.POLLIN)
        while True:
            ready = poll.poll(200)
            if ready:
                return by_handle[ready[0][0]]
            wait.check(sources)

    def _pull(self, sender: int, buffer: bytearray | Array, wait: _Wait) -> None:
        exchange({sender: Pending(self._links[sender], (), [buffer])}, wait)

    def _wait(self, what: str) -> _Wait:
        until = time.monotonic() + self._world.timeout
        return _Wait(self._world, self._members, what, until)

    def _compare(self, sender: int, label: bytes, wanted: bytes) -> None:
        if label != wanted:
            raise CollectiveMismatch(
                f"rank {self._members[sender]} sent {label.decode()}, "
                f"rank {self._members[self._rank]} receives {wanted.decode()}",
                peer=f"rank {self._members[sender]}",
                hint="the receiver's array must have the sender's dtype and shape",
            )


def _label(flat: Array, shape: tuple[int, ...]) -> bytes:
    return f"{flat.dtype}{list(shape)}".encode()[:112]
