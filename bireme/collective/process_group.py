"""A group of processes: agree on the call, then move the data by shared memory or sockets.

Before data moves, every rank sends every other the call it is about to make, in a frame of fixed
size that carries a small array along. The transports know the algorithms for large ones.
"""

import hashlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import CollectiveMismatch, DeadlineExceeded
from bireme.net.memory import aligned

from .group import Call, Group, check_same
from .memory_transport import CAN_SPIN, REGION, MemoryTransport, shared_regions
from .p2p import PointToPoint
from .reduction import finish, fold
from .shared_buffer import MARK, SharedBuffer
from .socket_transport import Moves, SocketTransport
from .transfers import (
    FailureDetector,
    Transfer,
    exchange,
    exchange_small,
    receive_small,
    send_small,
)

__all__ = ["Connections", "WireGroup"]

_FRAME = struct.Struct("<Q120s")  # number of the call, its text
_TEXT = 120
_UNHEARD = 128  # announcements at most that wait to be heard: they fit into a socket
_SMALL = 16 << 10  # bytes up to which an array rides with the frame


class Job(FailureDetector, Protocol):
    """The job that a group belongs to; ranks are those of the job."""

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank stops."""

    def subgroup(self, name: str, ranks: Sequence[int]) -> "WireGroup":
        """Connect a new group; all its members call this."""


@dataclass(frozen=True)
class Connections:
    """Connections to the other ranks of a group, by rank in the group."""

    collective: dict[int, socket.socket]
    messages: dict[int, socket.socket]

    def close(self) -> None:
        for connection in (*self.collective.values(), *self.messages.values()):
            connection.close()


class WireGroup(Group):
    """Ranks in different processes; `members[r]` is the number in the job of rank r."""

    def __init__(
        self, job: Job, name: str, members: Sequence[int], rank: int, connections: Connections
    ) -> None:
        super().__init__(rank, len(members))
        self._job = job
        self._name = name
        self._members = list(members)
        self._connections = connections
        self._others = [(rank + k) % self.size for k in range(1, self.size)]
        self._transport: MemoryTransport | SocketTransport = SocketTransport(
            rank, self.size, self._exchange
        )
        self._messages = PointToPoint(job, rank, self._members, connections.messages)
        self._number = 0
        self._announced: deque[bytes] = deque()  # frames that the others have not answered
        self._splits = 0
        self._until = 0.0

    def share_memory(self) -> None:
        """From now on move large arrays through shared memory, if that works between all ranks.

        Every rank of one host calls this before anything else.
        """
        regions = shared_regions(self, REGION)
        if regions:
            self._transport = MemoryTransport(self.rank, regions, self._synchronize, self)
        self._number = 0

    def shared_buffer(self, size: int) -> SharedBuffer | None:
        if not (CAN_SPIN and isinstance(self._transport, MemoryTransport)):
            return None
        regions = shared_regions(self, aligned(size) + MARK)
        return SharedBuffer(self, regions, size) if regions else None

    # -- announcing ------------------------------------------------------------------------
    def announce(self, call: str) -> None:
        with self._in_turn():
            self._number += 1
            self._announced.append(_FRAME.pack(self._number, _label(call)))
            self._until = time.monotonic() + self._job.timeout
            send_small(self._connections.collective, self._announced[-1], self)
            if len(self._announced) == _UNHEARD:
                self._hear()

    def hear(self) -> None:
        with self._in_turn():
            self._hear()

    def _hear(self) -> None:
        self._until = time.monotonic() + self._job.timeout
        while self._announced:
            frame, sizes = self._announced[0], dict.fromkeys(self._others, 0)
            answers = receive_small(self._connections.collective, frame, sizes, self)
            self._compare(frame, answers)
            self._announced.popleft()

    def wait_in_memory(self, late: Callable[[], list[int]]) -> None:
        """Return when memory shows that no rank is late."""
        with self._in_turn():
            assert isinstance(self._transport, MemoryTransport)
            self._until = time.monotonic() + self._job.timeout
            self._transport.wait(late)

    # -- one call --------------------------------------------------------------------------
    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        try:
            with super()._in_turn():
                yield
        except (CollectiveMismatch, DeadlineExceeded) as error:
            self._job.fail(error)
            raise

    def _carry(self, call: Call, verb: Callable[..., None], *args: Any) -> None:
        self._hear()
        self._number += 1
        small = self._small.get(call.kind)
        if small is not None and args and args[0].nbytes <= _SMALL:
            small(self, call, *args)
        else:
            self._agree(call)
            verb(*args)

    def agree_on(self, call: Call) -> None:
        """Agree on a call that another engine will carry out."""
        self._do(call, _nothing)

    def _agree(self, call: Call) -> None:
        """Every rank hears every rank's call; raise unless all are equal."""
        self._tell(call)

    def _tell(
        self, call: Call, small: Array | None = None, source: int | None = None
    ) -> list[bytes | bytearray]:
        """Agree, and exchange small arrays: those of all ranks, or that of `source` alone.

        Returns frame and array of every rank, in rank order.
        """
        frame = _FRAME.pack(self._number, _label(str(call)))
        size = 0 if small is None else small.nbytes
        mine = b"" if small is None or source not in (None, self.rank) else small.tobytes()
        sizes = {r: size if source in (None, r) else 0 for r in self._others}
        answers = exchange_small(self._connections.collective, frame, mine, sizes, self)
        return self._compare(frame, answers)

    def _compare(
        self, frame: bytes, answers: Mapping[int, bytes | bytearray]
    ) -> list[bytes | bytearray]:
        """What all ranks sent, in rank order; raise unless everybody made the same call."""
        told = [answers.get(r, frame) for r in range(self.size)]
        if all(each.startswith(frame) for each in told):
            return told
        number, calls = _FRAME.unpack(frame)[0], []
        for its_number, text in (_FRAME.unpack(each[: len(frame)]) for each in told):
            label = text.rstrip(b"\0").decode(errors="replace")
            calls.append(label if its_number == number else f"{label} as number {its_number}")
        check_same(calls, self.rank, number)
        return told

    # -- small arrays: all to all, in one hop --------------------------------------------------
    def _all_reduce_small(self, call: Call, flat: Array, op: str) -> None:
        fold(op, self._swap(call, flat), flat)
        finish(op, flat, self.size)

    def _reduce_small(self, call: Call, flat: Array, op: str, root: int) -> None:
        inputs = self._swap(call, flat)
        if self.rank == root:
            fold(op, inputs, flat)
            finish(op, flat, self.size)

    def _reduce_parts_small(self, call: Call, flat: Array, op: str, bounds: Sequence[int]) -> None:
        own = slice(bounds[self.rank], bounds[self.rank + 1])
        fold(op, [each[own] for each in self._swap(call, flat)], flat[own])
        finish(op, flat[own], self.size)

    def _all_gather_small(self, call: Call, rows: Array, flat: Array) -> None:
        for row, other in zip(rows, self._swap(call, flat), strict=True):
            row[...] = other

    def _broadcast_small(self, call: Call, flat: Array, root: int) -> None:
        told = self._tell(call, flat, source=root)
        if self.rank != root:
            flat[...] = np.frombuffer(told[root], flat.dtype, offset=_FRAME.size)

    def _swap(self, call: Call, flat: Array) -> list[Array]:
        told = self._tell(call, flat)
        return [
            flat if r == self.rank else np.frombuffer(each, flat.dtype, offset=_FRAME.size)
            for r, each in enumerate(told)
        ]

    _small: dict[str, Callable[..., None]] = {
        "all_reduce": _all_reduce_small,
        "reduce": _reduce_small,
        "reduce_parts": _reduce_parts_small,
        "all_gather": _all_gather_small,
        "broadcast": _broadcast_small,
    }

    # -- moving and waiting ----------------------------------------------------------------
    def _exchange(self, moves: Moves) -> None:
        to = self._connections.collective
        exchange({r: Transfer(to[r], *moves[r]) for r in moves}, self)

    def _synchronize(self) -> None:
        """A barrier inside a collective: one byte to and from everyone."""
        exchange_small(
            self._connections.collective, b"\1", b"", dict.fromkeys(self._others, 0), self
        )

    def gone(self) -> int | None:
        """A rank that has closed its connection, whether or not it has done its part."""
        poll = select.poll()
        by_handle = {self._connections.collective[r].fileno(): r for r in self._others}
        for handle in by_handle:
            poll.register(handle, select.POLLRDHUP)
        return next((by_handle[handle] for handle, _ in poll.poll(0)), None)

    def check(self, awaited: Sequence[int]) -> None:
        self._job.check()
        if time.monotonic() > self._until:
            names = ", ".join(f"rank {self._members[r]}" for r in awaited)
            number = self._number - max(0, len(self._announced) - 1)
            raise DeadlineExceeded(
                f"{names} did not come to collective {number} of group '{self._name}' "
                f"within {self._job.timeout:.0f} s, though alive",
                peer=names,
                step=number,
                hint="does every rank make the same calls?",
            )

    def lost(self, peer: int) -> Exception:
        return self._job.lost(self._members[peer])

    # -- large arrays ----------------------------------------------------------------------
    def _all_reduce(self, flat: Array, op: str) -> None:
        self._transport.all_reduce(flat, op)
        finish(op, flat, self.size)

    def _reduce(self, flat: Array, op: str, root: int) -> None:
        self._transport.reduce(flat, op, root)
        if self.rank == root:
            finish(op, flat, self.size)

    def _reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        own = slice(bounds[self.rank], bounds[self.rank + 1])
        self._transport.reduce_parts(flat, op, bounds)
        finish(op, flat[own], self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        self._transport.broadcast(flat, root)

    def _all_gather(self, rows: Array, flat: Array) -> None:
        self._transport.all_gather(rows, flat)

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        self._transport.reduce_scatter(flat, rows, op)
        finish(op, flat, self.size)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        self._transport.gather(rows, flat, root)

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        self._transport.scatter(flat, rows, root)

    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        self._messages.send(flat, shape, to, tag)

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        return self._messages.recv(flat, shape, source, tag)

    # -- life ------------------------------------------------------------------------------
    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        self._splits += 1
        if color is None:
            return None
        name = f"{self._name}/{self._splits}.{color}"
        return self._job.subgroup(name, [self._members[r] for r in ranks])

    def close(self) -> None:
        self._connections.close()


def _nothing() -> None:
    """Another engine carries the call out."""


def _label(text: str) -> bytes:
    """The text in the frame's size; a text too long ends in its own digest, to stay unique."""
    data = text.encode()
    if len(data) <= _TEXT:
        return data
    return data[: _TEXT - 17] + b"~" + hashlib.blake2b(data, digest_size=8).hexdigest().encode()
