"""The group between processes: agree on the call, then move the data by shared memory or sockets.

Before data moves, every rank tells every other what it is about to do in a frame of fixed size;
a small array rides along. Knows the frames; the planes know the algorithms, the world knows who
is alive.
"""

import hashlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bireme.errors import CollectiveMismatch, DeadlineExceeded
from bireme.runtime.arrays import Array

from .group import BaseGroup, Call, Group, check_same
from .letters import Letters
from .reduction import finish, fold
from .shared import SharedPlane
from .sockets import Moves, SocketPlane
from .stream import Pending, exchange, swap

__all__ = ["Links", "Surroundings", "WireGroup"]

_FRAME = struct.Struct("<Q120s")  # number of the call, its text
_TEXT = 120
_SMALL = 16 << 10  # bytes up to which an array rides with the frame


class Surroundings(Protocol):
    """What a group needs from the world it lives in; ranks are those of the world."""

    timeout: float

    def check(self) -> None:
        """Raise when a rank is known to be lost."""

    def lost(self, rank: int) -> Exception:
        """The error for a link that `rank` closed, naming who is to blame."""

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank stops."""

    def subgroup(self, name: str, ranks: Sequence[int]) -> "WireGroup":
        """Open the links of a new group; all its members call this."""


@dataclass(frozen=True)
class Links:
    """What connects this rank to the others of a group, by rank in the group."""

    collective: dict[int, socket.socket]
    letters: dict[int, socket.socket]
    regions: list[Array] = field(default_factory=list)  # everybody's, when memory is shared

    def close(self) -> None:
        for link in (*self.collective.values(), *self.letters.values()):
            link.close()


class WireGroup(BaseGroup):
    """Ranks in different processes. `members` are their numbers in the world."""

    def __init__(
        self, world: Surroundings, name: str, members: Sequence[int], rank: int, links: Links
    ) -> None:
        super().__init__(rank, len(members))
        self._world = world
        self._name = name
        self._members = list(members)
        self._links = links
        self._others = [(rank + k) % self.size for k in range(1, self.size)]
        self._plane: SharedPlane | SocketPlane
        if links.regions:
            self._plane = SharedPlane(rank, links.regions, self._meet, self)
        else:
            self._plane = SocketPlane(rank, self.size, self._exchange)
        self._letters = Letters(world, rank, self._members, links.letters)
        self._number = 0
        self._splits = 0
        self._until = 0.0

    # -- one call --------------------------------------------------------------------------

    def _do(self, call: Call, verb: Callable[..., None], *args: Any) -> None:
        try:
            super()._do(call, verb, *args)
        except (CollectiveMismatch, DeadlineExceeded) as error:
            self._world.fail(error)
            raise

    def _carry(self, call: Call, verb: Callable[..., None], *args: Any) -> None:
        self._number += 1
        self._until = time.monotonic() + self._world.timeout
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
        self, call: Call, rider: Array | None = None, source: int | None = None
    ) -> list[bytes | bytearray]:
        """The same, with a small array behind the frames of all ranks, or of `source` alone.

        Returns frame and rider of every rank, in rank order.
        """
        frame = _FRAME.pack(self._number, _label(str(call)))
        size = 0 if rider is None else rider.nbytes
        mine = b"" if rider is None or source not in (None, self.rank) else rider.tobytes()
        sizes = {r: size if source in (None, r) else 0 for r in self._others}
        answers = swap(self._links.collective, frame, mine, sizes, self)
        told: list[bytes | bytearray] = [answers.get(r, frame) for r in range(self.size)]
        if not all(each.startswith(frame) for each in told):
            self._disagree([bytes(each[: len(frame)]) for each in told])
        return told

    def _disagree(self, frames: Sequence[bytes]) -> None:
        calls = []
        for number, text in map(_FRAME.unpack, frames):
            label = text.rstrip(b"\0").decode(errors="replace")
            calls.append(label if number == self._number else f"{label} as number {number}")
        check_same(calls, self.rank, self._number)

    # -- small arrays: everyone's go to everyone, in one hop -----------------------------------

    def _all_reduce_small(self, call: Call, flat: Array, op: str, *root: int) -> None:
        fold(op, self._swap(call, flat), flat)
        finish(op, flat, self.size)

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
        "reduce": _all_reduce_small,
        "all_gather": _all_gather_small,
        "broadcast": _broadcast_small,
    }

    # -- moving and waiting ----------------------------------------------------------------

    def _exchange(self, moves: Moves) -> None:
        links = self._links.collective
        exchange({r: Pending(links[r], *moves[r]) for r in moves}, self)

    def _meet(self) -> None:
        """A barrier inside a collective: one byte to and from everyone."""
        swap(self._links.collective, b"\1", b"", dict.fromkeys(self._others, 0), self)

    def gone(self) -> int | None:
        """A rank that has closed its link, whether or not it has done its part."""
        poll = select.poll()
        by_handle = {self._links.collective[r].fileno(): r for r in self._others}
        for handle in by_handle:
            poll.register(handle, select.POLLRDHUP)
        return next((by_handle[handle] for handle, _ in poll.poll(0)), None)

    def check(self, awaited: Sequence[int]) -> None:
        self._world.check()
        if time.monotonic() > self._until:
            names = ", ".join(f"rank {self._members[r]}" for r in awaited)
            raise DeadlineExceeded(
                f"{names} did not come to collective {self._number} of group '{self._name}' "
                f"within {self._world.timeout:.0f} s, though alive",
                peer=names,
                step=self._number,
                hint="does every rank make the same calls?",
            )

    def lost(self, peer: int) -> Exception:
        return self._world.lost(self._members[peer])

    # -- large arrays ----------------------------------------------------------------------

    def _all_reduce(self, flat: Array, op: str) -> None:
        self._plane.all_reduce(flat, op)
        finish(op, flat, self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        self._plane.broadcast(flat, root)

    def _all_gather(self, rows: Array, flat: Array) -> None:
        self._plane.all_gather(rows, flat)

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        self._plane.reduce_scatter(flat, rows, op)
        finish(op, flat, self.size)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        self._plane.gather(rows, flat, root)

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        self._plane.scatter(flat, rows, root)

    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        self._letters.send(flat, shape, to, tag)

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        return self._letters.recv(flat, shape, source, tag)

    # -- life ------------------------------------------------------------------------------

    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        self._splits += 1
        if color is None:
            return None
        name = f"{self._name}/{self._splits}.{color}"
        return self._world.subgroup(name, [self._members[r] for r in ranks])

    def close(self) -> None:
        self._links.close()


def _nothing() -> None:
    """What is left to do once all agree on a call of another engine."""


def _label(text: str) -> bytes:
    """The text in the frame's size; a text too long ends in its own digest, to stay unique."""
    data = text.encode()
    if len(data) <= _TEXT:
        return data
    return data[: _TEXT - 17] + b"~" + hashlib.blake2b(data, digest_size=8).hexdigest().encode()
