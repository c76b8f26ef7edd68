"""Gradients on their way out: a bounded queue per variable, and how several become one.

Whoever puts waits while a queue is full; whoever takes gets what lies there, merged. The file
knows threads and arrays, no servers.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import BiremeError, DeadlineExceeded
from bireme.net.frames import Value

__all__ = ["Address", "Queues", "merge"]

Address: TypeAlias = tuple[str, str]  # endpoint, name on the wire
MOMENT = 0.01  # seconds of one wait for a merge to fill


def merge(values: Sequence[Value], *, mean: bool = False, unite_rows: bool = True) -> Value:
    """Several values of one variable as one: their sum or mean, in their order.

    Counters are whole numbers and always add up.
    """
    first = values[0]
    if isinstance(first, SelectedRows):
        rows = np.concatenate([v.rows for v in values])
        value = np.concatenate([v.value for v in values])
        united = SelectedRows(rows, value / _divisor(values, mean), first.height)
        return united.merged() if unite_rows else united
    if len(values) == 1:
        return first
    total = sum((_array(value) for value in values[1:]), start=_array(first))
    return total / _divisor(values, mean) if total.dtype.kind == "f" else total


def _divisor(values: Sequence[Value], mean: bool) -> np.float32:
    return np.float32(len(values) if mean else 1)


def _array(value: Value) -> np.ndarray:
    return np.asarray(value.array if isinstance(value, LoDTensor) else value)


class Queues:
    """What waits to be sent. Any thread may put, one takes."""

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._waiting: dict[Address, deque[Value]] = {}
        self._changed = threading.Condition()
        self._taken = False  # what was taken last may still be on its way
        self._closed = False
        self._failure: BiremeError | None = None

    @property
    def depth(self) -> int:
        """The length of the longest queue."""
        return max(map(len, self._waiting.values()), default=0)

    def put(self, address: Address, value: Value, patience: float) -> None:
        """Append, once there is room.

        Raises:
            DeadlineExceeded: nobody has taken anything for `patience` seconds.
            BiremeError: sending has failed.
        """
        with self._changed:
            queue = self._waiting.setdefault(address, deque())
            room = self._changed.wait_for(
                lambda: self._failure is not None or len(queue) < self._limit, patience
            )
            if self._failure is not None:
                raise self._failure
            if not room:
                raise DeadlineExceeded(f"nothing was sent to {address[0]} for {patience:.0f} s")
            queue.append(value)
            self._changed.notify_all()

    def take(self, most: int, waits: int) -> Mapping[Address, list[Value]]:
        """Up to `most` values of every variable, once there are some; nothing when closed.

        Waits a little, `waits` moments, for `most` to come together.
        """
        with self._changed:
            self._taken = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self.depth > 0)
            until = time.monotonic() + waits * MOMENT
            full = min(most, self._limit)
            while self.depth < full and not self._closed and time.monotonic() < until:
                self._changed.wait(MOMENT)
            found = {
                address: [queue.popleft() for _ in range(min(most, len(queue)))]
                for address, queue in self._waiting.items()
                if queue
            }
            self._taken = bool(found)
            self._changed.notify_all()
            return found

    def settle(self, patience: float) -> None:
        """Wait until everything has been taken and sent.

        Raises:
            DeadlineExceeded: that took longer than `patience` seconds.
            BiremeError: sending has failed.
        """
        with self._changed:
            settled = self._changed.wait_for(
                lambda: self._failure is not None or not (self._taken or self.depth), patience
            )
            if self._failure is not None:
                raise self._failure
            if not settled:
                raise DeadlineExceeded(f"what was queued could not be sent for {patience:.0f} s")

    def close(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def fail(self, error: BiremeError) -> None:
        """Sending has failed: whoever puts or waits hears of it."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()
