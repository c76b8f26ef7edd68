"""Asynchronous calls that keep their order. The calls themselves have deadlines."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from bireme.forks import Owner

__all__ = ["OrderedQueue", "Work"]


class Work:
    """A call under way, as a future: `is_completed` and `wait` as in torch.distributed."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act: Callable[[], Any] | None = act
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        act, self._act = self._act, None  # whatever it holds is free once it is done
        assert act is not None
        try:
            self._result = act()
        except BaseException as error:
            self._error = error
        del act
        self._done.set()

    @classmethod
    def finished(cls) -> "Work":
        """Work that is done, or queued on a device."""
        work = cls(lambda: None)
        work.run()
        return work

    def is_completed(self) -> bool:
        return self._done.is_set()

    def wait(self) -> Any:
        """The result of the call; raises what it raised."""
        while not self._done.wait(1.0):  # so that Ctrl-C is noticed
            pass
        if self._error is not None:
            raise self._error
        return self._result


class OrderedQueue:
    """Calls one after the other; in a thread, which starts with the first deferred one."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._last: Work | None = None
        self._thread: threading.Thread | None = None
        self._owner = Owner("this queue of collective calls")

    def do(self, act: Callable[[], Any], *, later: bool) -> Any:
        """The result of `act`; if `later`, the Work that will have it."""
        self._owner.check()
        if not later and (self._last is None or self._last.is_completed()):
            return act()
        work = Work(act)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._last = work
        self._queue.put(work)
        return work if later else work.wait()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.run()

    def close(self) -> None:
        self._queue.put(None)
