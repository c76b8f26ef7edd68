"""The links of this process, one per trainer id, and how they end with it.

A normal exit of the interpreter completes them; an uncaught error, Ctrl-C or SIGTERM aborts them
with the cause.
"""

import atexit
import signal
import sys
import threading
from types import TracebackType
from typing import Any

from bireme.rpc.liveness import times
from bireme.rpc.memory import keep_memory
from bireme.rpc.tally import tally
from bireme.rpc.wire import Dial, Wire

from .link import Link, describe, leave_now

__all__ = ["Links", "links"]


def _dial(endpoint: str) -> Wire:
    from bireme.rpc.client import GrpcWire

    return GrpcWire(endpoint, times().silence)


class Links:
    """Links by trainer id; `dial` says how servers are reached."""

    def __init__(self, dial: Dial = _dial) -> None:
        self.dial = dial
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._hooked = False

    def of(self, trainer: int) -> Link:
        """The link of a trainer, made at the first question."""
        with self._lock:
            link = self._links.get(trainer)
            if link is None:
                self._hook()
                tally.enter("trainer", trainer)
                link = self._links[trainer] = Link(trainer, self.dial, times(), leave_now)
            return link

    @property
    def trainers(self) -> list[int]:
        """The trainers that have a link now."""
        return sorted(self._links)

    def close(self, trainer: int, error: BaseException | None = None) -> None:
        """Complete one trainer, or give up because of an error."""
        with self._lock:
            link = self._links.pop(trainer, None)
        if link is not None and error is not None:
            link.abort(describe(error))
        elif link is not None:
            link.close()

    def close_all(self) -> None:
        for trainer in list(self._links):
            self.close(trainer)

    def abort_all(self, cause: str) -> None:
        for link in list(self._links.values()):
            link.abort(cause)

    # -- the end of the process ------------------------------------------------------------
    def _hook(self) -> None:
        if self._hooked:
            return
        self._hooked = True
        keep_memory()
        atexit.register(self.close_all)
        previous = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.abort_all(describe(error))
            previous(kind, error, trace)

        sys.excepthook = hook
        if threading.current_thread() is threading.main_thread():
            self._obey_sigterm()

    def _obey_sigterm(self) -> None:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def end(number: int, frame: Any) -> None:
            # In a thread: the signal may have come while this one held a lock of gRPC.
            telling = threading.Thread(
                target=self.abort_all, args=("it was ended by SIGTERM",), daemon=True
            )
            telling.start()
            telling.join(1.0)
            raise SystemExit(128 + number)

        signal.signal(signal.SIGTERM, end)


links = Links()
