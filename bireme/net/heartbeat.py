"""Heartbeats: a thread per server that beats while the trainer computes, and hears of the job's
end. It knows an endpoint and whom to tell; it knows no round and no gradient.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bireme import flags
from bireme.errors import BiremeError, DeadlineExceeded, FormatError, PeerLost, ProtocolError
from bireme.rewinding import rewound

from . import messages as m
from .carriers import Endpoint, Unreachable
from .error_replies import raised
from .frames import decode, encode

__all__ = ["Heartbeat", "Times", "times"]


READING = 0.03  # seconds for another thread to read what has come
PAUSE = 0.2  # seconds between beats while the connection is broken


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a trainer's patience: between beats, of a silent server, of one exchange, until
    servers start, until one that records every round comes back.
    """

    beat: float = 1.0
    silence: float = 6.0
    deadline: float = 180.0
    join: float = 300.0
    rejoin: float = 60.0
    grace: float = 1.5  # from the news of a failure to the end of a process that ignores it


def times() -> Times:
    """The times that this process's flags ask for."""
    heartbeat = float(flags.get("heartbeat_seconds"))
    return Times(
        beat=0.1 * heartbeat,
        silence=0.6 * heartbeat,
        deadline=flags.get("rpc_deadline") / 1000,
        join=float(flags.get("rejoin_seconds" if rewound() else "join_seconds")),
        rejoin=float(flags.get("rejoin_seconds")),
        grace=0.15 * heartbeat,
    )


class Heartbeat:
    """Beats for one trainer at one server until stopped; reports the first bad news and falls
    silent.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        beat: Callable[[], m.Heartbeat],
        report: Callable[[BiremeError], None],
        times: Times,
        descriptor: Callable[[], int] = lambda: -1,
        patience: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`descriptor` gives the socket to the server that is in use; the end of that connection
        brings the next beat forward. -1: there is none. `patience` gives the seconds that a server
        may be unreachable because it is started again; 0: it never is.
        """
        self._endpoint = endpoint
        self._beat = beat
        self._report = report
        self._times = times
        self._descriptor = descriptor
        self._patience = patience
        self._ended = False  # whether the connection was found ended at the last beat
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"heartbeat {endpoint.endpoint}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        """A busy server may take all its time to answer. It is lost if it does not answer a beat
        that began after its time had passed: until then this process may have stood still itself.
        """
        heard, silence = time.monotonic(), self._times.silence
        while not self._wait():
            began = time.monotonic()
            news = self._listen(max(silence - (began - heard), silence / 4))
            now = time.monotonic()
            if isinstance(news, Unreachable | DeadlineExceeded):
                absent = isinstance(news, Unreachable)
                patience = self._patience() if absent else 0.0
                gone = absent and not patience and self._endpoint.refuses()
                lost = gone or began - heard >= max(silence, patience)
                news = self._lost(now - heard, patience) if lost else None
            else:
                heard = now
            if isinstance(news, PeerLost):
                self._await_reader()
            if news is not None and not self._stopped.is_set():
                self._report(news)
                return

    def _wait(self) -> bool:
        """Until the next beat is due; whether this heartbeat has been stopped."""
        try:
            watched = os.dup(self._descriptor())  # the original may be closed meanwhile
        except OSError:
            return self._stopped.wait(self._times.beat)
        try:
            if self._ended and self._stopped.wait(min(PAUSE, self._times.beat)):
                return True
            ready = select.poll()
            ready.register(watched, getattr(select, "POLLRDHUP", 0))
            self._ended = bool(ready.poll(self._times.beat * 1000))
        finally:
            os.close(watched)
        return self._stopped.is_set()

    def _await_reader(self) -> None:
        """What a server has said before it ended tells more than its end: let it be read first, and
        be understood.
        """
        until = time.monotonic() + self._times.grace
        while _has_unread(self._descriptor()) and time.monotonic() < until:
            self._stopped.wait(READING)
        self._stopped.wait(READING)

    def _listen(self, timeout: float) -> BiremeError | None:
        request = encode(self._beat())
        try:
            answer = decode([self._endpoint.call(request, timeout)]).message
        except (Unreachable, DeadlineExceeded, FormatError, ProtocolError) as error:
            return error
        if not isinstance(answer, m.Refused):
            return None
        refusal = raised(answer)
        if isinstance(refusal, PeerLost):
            refusal.peer = refusal.peer or f"server {self._endpoint.endpoint}"
        return refusal

    def _lost(self, since: float, patience: float) -> PeerLost:
        step = self._beat().step
        return PeerLost(
            f"server {self._endpoint.endpoint} is lost: silent for {since:.1f} s, at step {step}",
            peer=f"server {self._endpoint.endpoint}",
            step=step,
            hint="see that server's log; the time is "
            f"FLAGS_{'rejoin' if patience else 'heartbeat'}_seconds",
        )


def _has_unread(descriptor: int) -> bool:
    """Whether something has come on this socket that nobody has read."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as duplicate:
            return bool(duplicate.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False
