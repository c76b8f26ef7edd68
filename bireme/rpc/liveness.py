"""Signs of life: a thread per server that beats while the trainer computes, and hears of the
job's end.

It knows a wire and what to do with bad news; it knows no round and no gradient.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bireme import flags
from bireme.errors import BiremeError, DeadlineExceeded, FormatError, PeerLost

from . import messages as m
from .codec import decode, encode
from .refusals import raised
from .wire import Unreachable, Wire

__all__ = ["Heart", "Times", "times"]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a trainer's patience: between beats, of a silent server, of one exchange, until
    servers start.
    """

    beat: float = 1.0
    silence: float = 6.0
    deadline: float = 180.0
    join: float = 300.0
    grace: float = 1.5  # from the news of a failure to the end of a process that ignores it


def times() -> Times:
    """The times that this process's flags ask for."""
    heartbeat = float(flags.get("heartbeat_seconds"))
    return Times(
        beat=0.1 * heartbeat,
        silence=0.6 * heartbeat,
        deadline=flags.get("rpc_deadline") / 1000,
        join=float(flags.get("join_seconds")),
        grace=0.15 * heartbeat,
    )


class Heart:
    """Beats for one trainer at one server until stopped; reports the first bad news and falls
    silent.
    """

    def __init__(
        self,
        wire: Wire,
        beat: Callable[[], m.Heartbeat],
        report: Callable[[BiremeError], None],
        times: Times,
    ) -> None:
        self._wire = wire
        self._beat = beat
        self._report = report
        self._times = times
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"heart {wire.endpoint}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._stopped.wait(self._times.beat):
            news = self._listen()
            now = time.monotonic()
            if isinstance(news, Unreachable | DeadlineExceeded):
                news = self._lost(now - heard) if now - heard > self._times.silence else None
            else:
                heard = now
            if news is not None and not self._stopped.is_set():
                self._report(news)
                return

    def _listen(self) -> BiremeError | None:
        request = encode(self._beat())[0]
        try:
            answer = decode([self._wire.call(request, self._times.beat)]).message
        except (Unreachable, DeadlineExceeded, FormatError) as error:
            return error
        return raised(answer) if isinstance(answer, m.Refused) else None

    def _lost(self, since: float) -> PeerLost:
        step = self._beat().step
        return PeerLost(
            f"server {self._wire.endpoint} is lost: silent for {since:.1f} s, at step {step}",
            peer=f"server {self._wire.endpoint}",
            step=step,
            hint="see that server's log; the time is FLAGS_heartbeat_seconds",
        )
