"""Threads of NumPy's BLAS. `threadpoolctl` is imported on first use."""

import os
import threading
from functools import cache
from typing import Any

__all__ = ["SINGLE", "threads"]


@cache
def _libraries() -> tuple[Any, ...]:
    from threadpoolctl import ThreadpoolController

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


def threads() -> int | None:
    """The number of threads BLAS uses; None if unknown."""
    return max((library.get_num_threads() for library in _libraries()), default=None)


class _Single:
    """A reentrant context in which BLAS uses one thread.

    Only the main thread changes the setting, because OpenBLAS ignores other threads. In other
    threads BLAS is left as it is.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._usual: list[tuple[Any, int]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth += 1
        if self._depth > 1:
            return
        for library in _libraries():
            if (count := library.get_num_threads()) != 1:
                self._usual.append((library, count))
                library.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        while self._depth == 0 and self._usual:
            library, count = self._usual.pop()
            library.set_num_threads(count)

    def fork(self) -> None:
        """In a forked child the thread that forked is the main one; the block may be another's."""
        if threading.get_ident() != self._main:
            self.__init__()  # type: ignore[misc]  # start afresh


SINGLE = _Single()
os.register_at_fork(after_in_child=SINGLE.fork)
