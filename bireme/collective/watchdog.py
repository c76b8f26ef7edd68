"""A watchdog for a device's communicator, which by itself waits for ever for a lost peer.

CuPy is not imported here: communicators and events are passed in.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bireme import failures
from bireme.arrays.namespaces import Array
from bireme.errors import BiremeError, DeadlineExceeded, UnsupportedError
from bireme.logs import show_error

from .transfers import FailureDetector

__all__ = ["Watchdog", "leave", "unless_lost"]

_LOOK = 0.1  # seconds between two looks
_GRACE = 5.0  # seconds that an abort may take, and the device after it


class Watchdog:
    """A thread for one communicator: frees finished work, aborts when a peer is lost.

    The caller may be blocked in a device call that only an abort ends.
    """

    def __init__(self, comm: Any, check: Callable[[], None]) -> None:
        self._comm = comm
        self._check = check
        self._pending: deque[tuple[Any, tuple[Array, ...]]] = deque()
        self._over = threading.Event()
        self._error: BiremeError | None = None
        self._thread = threading.Thread(target=self._look, name="bireme-nccl", daemon=True)
        self._thread.start()

    def add(self, event: Any, kept: tuple[Array, ...]) -> None:
        self._pending.append((event, kept))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _look(self) -> None:
        while not self._over.wait(_LOOK):
            try:
                self._forget_finished()
                self._check()
                self._comm.check_async_error()
            except Exception as error:
                self._error = _as_ours(error)
                self._abort()
                self._see_to_the_end(self._error)
                return

    def _forget_finished(self) -> None:
        while self._pending and self._pending[0][0].done:
            self._pending.popleft()

    def _abort(self) -> None:
        """Abort may itself hang, so it gets a thread and a time."""
        thread = threading.Thread(target=self._comm.abort, daemon=True)
        thread.start()
        thread.join(_GRACE)

    def _see_to_the_end(self, error: BiremeError) -> None:
        """End the process if even the abort does not unblock the caller."""
        deadline = time.monotonic() + _GRACE
        with contextlib.suppress(Exception):  # a broken device sets nobody waiting
            while self._pending and not self._over.is_set():
                self._forget_finished()
                if self._pending and time.monotonic() > deadline:
                    leave(error)
                    return
                time.sleep(_LOOK)

    def close(self) -> None:
        """Abort needs no other rank, while `destroy` waits for all of them."""
        deadline = time.monotonic() + _GRACE
        with contextlib.suppress(Exception):  # a broken device finishes nothing
            while self._pending and self._error is None and time.monotonic() < deadline:
                self._forget_finished()
                time.sleep(0.001)
        if not self._over.is_set():
            self._over.set()
            self._thread.join(_GRACE)
            if self._error is None:
                self._abort()


def leave(error: BiremeError) -> None:
    """End the process: its main thread hangs in the device for good."""
    failures.leave(error)
    show_error(f"{error}\n  the device did not come back: leaving", error)
    os._exit(1)


def unless_lost(connect: Callable[[], Any], job: FailureDetector) -> Any:
    """The result of `connect`, which has no deadline of its own: it runs in a thread.

    Raises:
        DeadlineExceeded: the ranks are alive, and NCCL does not connect them.
    """
    made: list[Any] = []
    wrong: list[Exception] = []

    def act() -> None:
        try:
            made.append(connect())
        except Exception as error:
            wrong.append(error)

    thread = threading.Thread(target=act, name="bireme-nccl-connect", daemon=True)
    thread.start()
    deadline = time.monotonic() + job.timeout
    while thread.is_alive():
        thread.join(_LOOK)
        job.check()
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"NCCL did not connect the ranks within {job.timeout:.0f} s, though all live",
                hint="NCCL_DEBUG=INFO shows what it tries; NCCL_SOCKET_IFNAME names the network",
            )
    if wrong:
        raise _as_ours(wrong[0])
    return made[0]


def _as_ours(error: Exception) -> BiremeError:
    if isinstance(error, BiremeError):
        return error
    return UnsupportedError(f"NCCL failed: {error}", hint="NCCL_DEBUG=WARN says more")
