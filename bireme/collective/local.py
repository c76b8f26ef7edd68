"""The local engine: the ranks are threads of one process. The reference for the others.

Knows no wire: a rank puts a copy of its array on a table, waits until every rank has, and
computes its own result from what lies there.
"""

import threading
import time
from collections import deque
from typing import Any

from bireme.errors import CollectiveMismatch, DeadlineExceeded, PeerLost
from bireme.runtime.arrays import Array

from .group import BaseGroup, Call, Group, check_same
from .reduction import finish, fold

__all__ = ["LocalGroup", "local_groups"]


def local_groups(size: int, timeout: float = 60.0) -> list["LocalGroup"]:
    """One group of `size` ranks; give each thread its own element."""
    table = _Table(size)
    return [LocalGroup(table, rank, timeout) for rank in range(size)]


class _Table:
    """Where the ranks meet. One round per collective; a round ends when all have taken it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rounds: dict[tuple[Any, ...], dict[int, Any]] = {}
        self.taken: dict[tuple[Any, ...], int] = {}
        self.mail: dict[tuple[int, int, int], deque[tuple[str, Array]]] = {}
        self.left: set[int] = set()
        self.children: dict[tuple[Any, ...], _Table] = {}

    def meet(self, key: tuple[Any, ...], rank: int, value: Any, deadline: float) -> list[Any]:
        """Put `value` down, wait for all, return everybody's in rank order."""
        with self.changed:
            seats = self.rounds.setdefault(key, {})
            seats[rank] = value
            self.changed.notify_all()
            while len(seats) < self.size:
                missing = [r for r in range(self.size) if r not in seats]
                self._wait(missing, deadline, [r for r in missing if r in self.left])
            self.taken[key] = self.taken.get(key, 0) + 1
            if self.taken[key] == self.size:
                del self.rounds[key], self.taken[key]
            return [seats[r] for r in range(self.size)]

    def take_mail(self, to: int, source: int | None, tag: int, deadline: float) -> Any:
        sources = [r for r in range(self.size) if r != to] if source is None else [source]
        with self.changed:
            while True:
                for sender in sources:
                    box = self.mail.get((sender, to, tag))
                    if box:
                        return sender, *box.popleft()
                left = set(sources) <= self.left
                self._wait(sources, deadline, sources if left else [])

    def _wait(self, awaited: list[int], deadline: float, gone: list[int]) -> None:
        if gone:
            raise PeerLost(f"rank {gone[0]} has left the group", peer=f"rank {gone[0]}")
        left = deadline - time.monotonic()
        if left <= 0:
            names = ", ".join(f"rank {r}" for r in awaited)
            raise DeadlineExceeded(f"{names} did not come in time", peer=names)
        self.changed.wait(left)


class LocalGroup(BaseGroup):
    """A rank among the threads of this process."""

    def __init__(self, table: _Table, rank: int, timeout: float) -> None:
        super().__init__(rank, table.size)
        self._table = table
        self._timeout = timeout
        self._number = 0
        self._splits = 0

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _agree(self, call: Call) -> None:
        self._number += 1
        calls = self._meet("call", str(call))
        check_same(calls, self.rank, self._number)

    def _meet(self, what: str, value: Any) -> list[Any]:
        return self._table.meet((what, self._number), self.rank, value, self._deadline())

    def _all_reduce(self, flat: Array, op: str) -> None:
        fold(op, self._meet("data", flat.copy()), flat)
        finish(op, flat, self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        flat[...] = self._meet("data", flat.copy() if self.rank == root else None)[root]

    def _all_gather(self, rows: Array, flat: Array) -> None:
        for row, other in zip(rows, self._meet("data", flat.copy()), strict=True):
            row[...] = other

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        everyone = self._meet("data", rows.copy())
        fold(op, [each[self.rank] for each in everyone], flat)
        finish(op, flat, self.size)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        everyone = self._meet("data", flat.copy())
        if rows is not None:
            for row, other in zip(rows, everyone, strict=True):
                row[...] = other

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        flat[...] = self._meet("data", None if rows is None else rows.copy())[root][self.rank]

    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        with self._table.changed:
            box = self._table.mail.setdefault((self.rank, to, tag), deque())
            box.append((f"{flat.dtype}{list(shape)}", flat.copy()))
            self._table.changed.notify_all()

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        sender, label, sent = self._table.take_mail(self.rank, source, tag, self._deadline())
        wanted = f"{flat.dtype}{list(shape)}"
        if label != wanted:
            raise CollectiveMismatch(
                f"rank {sender} sent {label}, rank {self.rank} receives {wanted}",
                peer=f"rank {sender}",
            )
        flat[...] = sent
        return int(sender)

    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        self._splits += 1
        if color is None:
            return None
        with self._table.changed:
            key = (self._splits, color)
            table = self._table.children.setdefault(key, _Table(len(ranks)))
        return LocalGroup(table, ranks.index(self.rank), self._timeout)

    def close(self) -> None:
        with self._table.changed:
            self._table.left.add(self.rank)
            self._table.changed.notify_all()
