"""Heartbeats: a thread per server that beats while the trainer computes, and hears of the job's
end. It knows an endpoint and whom to tell; it knows no round and no gradient.
"""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bireme import flags
from bireme.errors import BiremeError, DeadlineExceeded, FormatError, PeerLost, ProtocolError
from bireme.recovery.restarts import restarted

from . import messages as m
from .carriers import Endpoint, Unreachable
from .error_replies import raised
from .frames import decode, encode
from .processes import Watched

__all__ = ["Heartbeat", "Times", "times"]


READING = 0.03  # seconds for another thread to read what has come
PAUSE = 0.2  # seconds between beats while the connection is broken


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a trainer's patience: between beats, of a silent server, of one that cannot be
    reached, of one exchange, until servers start, until one that records every round comes back.
    """

    beat: float = 1.0
    silence: float = 6.0
    away: float = 10.0
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
        away=heartbeat,
        deadline=flags.get("rpc_deadline") / 1000,
        join=float(flags.get("rejoin_seconds" if restarted() else "join_seconds")),
        rejoin=float(flags.get("rejoin_seconds")),
        grace=0.15 * heartbeat,
    )


class Peer(Protocol):
    """The server as heartbeats see it. The end of its connection or process brings the next beat
    forward.
    """

    @property
    def process(self) -> Watched:
        """Its process."""
        ...

    @property
    def patience(self) -> float:
        """Seconds that it may be unreachable because it is started again; 0: it never is."""
        ...

    def fileno(self) -> int:
        """The socket to it that is in use; -1 if there is none."""
        ...


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
        peer: Peer,
    ) -> None:
        self._endpoint = endpoint
        self._beat = beat
        self._report = report
        self._times = times
        self._peer = peer
        self._ended = False  # whether connection or process was found ended at the last beat
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
        One whose connection was lost has more time, since it cannot hear; none if its process has
        ended.
        """
        heard, silence, limit = time.monotonic(), self._times.silence, 0.0
        while not self._wait():
            began = time.monotonic()
            news = self._listen(max(silence - (began - heard), silence / 4))
            now = time.monotonic()
            if isinstance(news, Unreachable | DeadlineExceeded):
                patience = self._peer.patience if isinstance(news, Unreachable) else 0.0
                away = self._times.away if isinstance(news, Unreachable) else silence
                limit = max(limit, away, patience)
                gone = self._peer.process.ended and not patience
                lost = gone or began - heard >= limit
                news = self._lost(now - heard, patience) if lost else None
            else:
                heard, limit = now, 0.0
            if isinstance(news, PeerLost):
                self._await_reader()
            if news is not None and not self._stopped.is_set():
                self._report(news)
                return

    def _wait(self) -> bool:
        """Until the next beat is due; whether this heartbeat has been stopped."""
        if self._ended and self._stopped.wait(min(PAUSE, self._times.beat)):
            return True
        ready = select.poll()
        with contextlib.ExitStack() as held:
            for descriptor, event in (
                (self._peer.fileno(), getattr(select, "POLLRDHUP", 0)),
                (self._peer.process.fileno(), select.POLLIN),
            ):
                with contextlib.suppress(OSError):  # the original may be closed at any time
                    ready.register(watched := os.dup(descriptor), event)
                    held.callback(os.close, watched)
            self._ended = bool(ready.poll(self._times.beat * 1000))
        return self._stopped.is_set()

    def _await_reader(self) -> None:
        """What a server has said before it ended tells more than its end: let it be read first, and
        be understood.
        """
        until = time.monotonic() + self._times.grace
        while _has_unread(self._peer.fileno()) and time.monotonic() < until:
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
