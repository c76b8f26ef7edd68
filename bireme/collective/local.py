"""The local engine: ranks are threads of one process. The reference for the others.

Every rank publishes a copy of its array, waits for all others, and computes its own result.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import DeadlineExceeded, PeerLost

from .group import Call, Group, check_message, check_same, message_label
from .reduction import finish, fold

__all__ = ["LocalGroup", "local_groups"]


def local_groups(size: int, timeout: float = 60.0) -> list["LocalGroup"]:
    """One group of `size` ranks; each thread uses its own element."""
    board = _Board(size)
    return [LocalGroup(board, rank, timeout) for rank in range(size)]


class _Board:
    """What the ranks share: the values of each collective, and messages."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.values: dict[tuple[Any, ...], dict[int, Any]] = {}
        self.taken: dict[tuple[Any, ...], int] = {}
        self.messages: dict[tuple[int, int, int], deque[tuple[str, Array]]] = {}
        self.left: set[int] = set()
        self.children: dict[tuple[Any, ...], _Board] = {}

    def exchange(self, key: tuple[Any, ...], rank: int, value: Any, deadline: float) -> list[Any]:
        """Publish `value`, wait for all ranks, return all values in rank order."""
        with self.changed:
            found = self.values.setdefault(key, {})
            found[rank] = value
            self.changed.notify_all()
            while len(found) < self.size:
                missing = [r for r in range(self.size) if r not in found]
                self._wait(missing, deadline, [r for r in missing if r in self.left])
            self.taken[key] = self.taken.get(key, 0) + 1
            if self.taken[key] == self.size:
                del self.values[key], self.taken[key]
            return [found[r] for r in range(self.size)]

    def receive(self, to: int, source: int | None, tag: int, deadline: float) -> Any:
        sources = [r for r in range(self.size) if r != to] if source is None else [source]
        with self.changed:
            while True:
                for sender in sources:
                    queue = self.messages.get((sender, to, tag))
                    if queue:
                        return sender, *queue.popleft()
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


class LocalGroup(Group):
    """A rank that is a thread of this process."""

    def __init__(self, board: _Board, rank: int, timeout: float) -> None:
        super().__init__(rank, board.size)
        self._board = board
        self._timeout = timeout
        self._number = 0
        self._splits = 0

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _agree(self, call: Call) -> None:
        self._number += 1
        calls = self._exchange("call", str(call))
        check_same(calls, self.rank, self._number)

    def _exchange(self, what: str, value: Any) -> list[Any]:
        return self._board.exchange((what, self._number), self.rank, value, self._deadline())

    def _all_reduce(self, flat: Array, op: str) -> None:
        fold(op, self._exchange("data", flat.copy()), flat)
        finish(op, flat, self.size)

    def _reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        own = slice(bounds[self.rank], bounds[self.rank + 1])
        fold(op, [each[own] for each in self._exchange("data", flat.copy())], flat[own])
        finish(op, flat[own], self.size)

    def _broadcast(self, flat: Array, root: int) -> None:
        flat[...] = self._exchange("data", flat.copy() if self.rank == root else None)[root]

    def _all_gather(self, rows: Array, flat: Array) -> None:
        for row, other in zip(rows, self._exchange("data", flat.copy()), strict=True):
            row[...] = other

    def _reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        everyone = self._exchange("data", rows.copy())
        fold(op, [each[self.rank] for each in everyone], flat)
        finish(op, flat, self.size)

    def _gather(self, rows: Array | None, flat: Array, root: int) -> None:
        everyone = self._exchange("data", flat.copy())
        if rows is not None:
            for row, other in zip(rows, everyone, strict=True):
                row[...] = other

    def _scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        flat[...] = self._exchange("data", None if rows is None else rows.copy())[root][self.rank]

    def _send(self, flat: Array, shape: tuple[int, ...], to: int, tag: int) -> None:
        with self._board.changed:
            queue = self._board.messages.setdefault((self.rank, to, tag), deque())
            queue.append((message_label(flat, shape), flat.copy()))
            self._board.changed.notify_all()

    def _recv(self, flat: Array, shape: tuple[int, ...], source: int | None, tag: int) -> int:
        sender, label, sent = self._board.receive(self.rank, source, tag, self._deadline())
        check_message(sender, label, self.rank, message_label(flat, shape))
        flat[...] = sent
        return int(sender)

    def _subgroup(self, color: int | None, ranks: list[int]) -> Group | None:
        self._splits += 1
        if color is None:
            return None
        with self._board.changed:
            key = (self._splits, color)
            board = self._board.children.setdefault(key, _Board(len(ranks)))
        return LocalGroup(board, ranks.index(self.rank), self._timeout)

    def close(self) -> None:
        with self._board.changed:
            self._board.left.add(self.rank)
            self._board.changed.notify_all()
