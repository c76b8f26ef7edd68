"""One server as a trainer sees it: write an exchange while the step goes on, receive its answer.

Calls are numbered per server. A lost connection is answered by sending the whole exchange again
under the same numbers: the server knows which of them have taken effect. The file knows frames
and time, no programs.
"""

import time
from collections.abc import Container, Mapping
from typing import Any

import msgspec
import numpy as np

from bireme.errors import PeerLost
from bireme.ir import DistributedMode
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.net.carriers import Endpoint, Exchange, Unreachable
from bireme.net.frames import (
    Buffer,
    Decoder,
    Received,
    Take,
    Value,
    encode,
    frame,
    frame_of,
    head_of,
)
from bireme.net.layouts import describe
from bireme.net.memory import Mappings
from bireme.net.processes import Watched

from .gradient_buffers import GradientBuffers
from .job_state import JobState
from .session import PAUSE, greet, greet_again, refused, say
from .values import copied

__all__ = ["NativeServer"]

HEARTBEATS_TURN = 0.35  # seconds for the heartbeat to say why a server has ended, or that it has


class NativeServer:
    """A server and the exchange that is open with it. One thread uses it at a time; `cancel` may
    come from any.
    """

    def __init__(
        self, endpoint: Endpoint, job: JobState, buffers: GradientBuffers | None = None
    ) -> None:
        """Greet the server; see `greet` for what it raises."""
        self.endpoint = endpoint
        self._session = greet(endpoint, job)
        self.welcomed = self._session.welcomed  # the first time
        self.process = Watched(self.welcomed.process)
        self.passed = self.welcomed.passed  # barriers of this trainer, in whatever life
        self.pushed = 0  # pushes since
        self.relies = False  # whether the open round is that of a former life, which cannot repeat
        self.step = 0
        self._job = job
        self._times = job.times
        self._sequence = 0
        self._buffers = buffers or GradientBuffers()
        self._held: list[Value] = []  # what the server reads where it lies
        self._frames: list[list[Buffer]] = []  # of the last calls, which may have to be repeated
        self._unsettled = False  # whether a push or barrier of theirs has not been used in a round
        self._seen = 0  # the last version that has come
        self._exchange: Exchange | None = None
        self._mappings = Mappings()
        self._decoder = Decoder(attach=self._mappings)
        self._received: Received | None = None
        self._settles = False  # whether the answer means that the exchange's pushes were used
        self._lent: Container[str] | None = None  # what may stay where the server put it; all

    @property
    def name(self) -> str:
        return f"server {self.endpoint.endpoint}"

    @property
    def mode(self) -> int:
        """How the server runs: sync is 0."""
        return self._session.mode

    @property
    def shares(self) -> bool:
        """Whether the server reads this process's memory."""
        return self._session.arena is not None

    @property
    def run(self) -> int:
        """Which run of the job this server serves; later ones are larger."""
        return self._session.first_life

    @property
    def patience(self) -> float:
        """Seconds that the server may be unreachable before it counts as lost; 0: none if its
        process has ended.
        """
        return self._times.rejoin if self._session.durable else 0.0

    @property
    def gone(self) -> bool:
        """Whether the server's process has ended, and no other will continue its work."""
        return not self.patience and self.process.ended

    @property
    def open(self) -> bool:
        """Whether an exchange has begun."""
        return bool(self._frames)

    def say(self, message: m.Message, timeout: float) -> m.Message:
        """One small request; a refusal is raised."""
        return say(self.endpoint, message, timeout)

    # -- writing ---------------------------------------------------------------------------
    def push(self, values: Mapping[str, Value]) -> None:
        """Send gradients in one call. Until the exchange ends they must stay what they are:
        whoever computes in place looks first whether anybody holds the array.
        """
        self._unsettled = True
        self.pushed += 1
        layout, arrays = describe(values)
        tally.sent += layout.size
        push = m.Push(**self._number())
        place = self._place_of(values)
        if place is None:
            self._send(frame_of(push, layout, arrays, self._take))
            return
        self._held += values.values()
        self._send([head_of(msgspec.structs.replace(push, place=place), layout.encoded)])

    def _place_of(self, values: Mapping[str, Value]) -> Any:
        """Where a gradient lies that was computed where the server can read it."""
        if not self.shares or len(values) > 1:
            return None
        (value,) = values.values()
        return self._buffers.place(value) if type(value) is np.ndarray else None

    def rounds(self, strict: bool) -> bool:
        """Whether a barrier belongs here."""
        return self.mode == DistributedMode.SYNC

    def barrier(self, inherits: bool = False) -> None:
        """Close the round of this trainer; `inherits`: with the pushes of its former life."""
        self._unsettled = True
        self.passed, self.pushed = self.passed + 1, 0
        self._write(m.Barrier(**self._number(), inherits=inherits))

    def pull(self, names: tuple[str, ...], gated: bool = True, lent: Container[str] = ()) -> None:
        """Ask for variables; `result` brings them. Those that are `lent` need not be copied: they
        are used before the next call.
        """
        self._ask(m.Pull(**self._number(answer=True), names=names, gated=gated))
        self._settles, self._lent = gated, lent

    def look_up(self, ids: Mapping[str, Value]) -> None:
        """Ask for rows of tables, which are used before the next call; `result` brings them."""
        self._ask(m.Lookup(**self._number(answer=True)), ids)
        self._lent = None

    def share(self, values: Mapping[str, Value]) -> None:
        """Bring arrays that all trainers shall have; `result` brings those of all."""
        self._ask(m.Share(**self._number(answer=True)), values)

    def save(self, folder: str, parts: tuple[str, ...], everybody: bool = False) -> None:
        """Ask for this server's part of a checkpoint; `result` says that it was copied."""
        number = self._number(answer=True)
        self._ask(m.Save(**number, folder=folder, parts=parts, everybody=everybody))

    def _ask(self, message: m.Message, values: Mapping[str, Value] | None = None) -> None:
        self._settles, self._lent = False, ()
        self._write(message, values)
        assert self._exchange is not None
        self._exchange.end()

    def _number(self, answer: bool = False) -> dict[str, Any]:
        self._sequence += 1
        return self._numbered(self._sequence, answer)

    def _numbered(self, sequence: int, answer: bool) -> dict[str, Any]:
        return {
            "trainer": self._job.trainer,
            "incarnation": self._job.incarnation,
            "sequence": sequence,
            "step": self.step,
            "answer": answer,
        }

    def _write(self, message: m.Message, values: Mapping[str, Value] | None = None) -> None:
        self._send(frame(message, values, self._take))

    @property
    def _take(self) -> Take | None:
        arena = self._session.arena
        return None if arena is None else arena.take

    def _send(self, parts: list[Buffer]) -> None:
        self._frames.append(parts)
        if self._exchange is None:
            self._exchange = self._session.carrier.exchange(self._times.deadline)
        self._exchange.write(parts)

    # -- reading ---------------------------------------------------------------------------
    def fileno(self) -> int:
        """What becomes readable when the answer comes; -1 if only `result` can wait for it."""
        return self._session.carrier.fileno()

    def arrived(self) -> dict[str, Value] | None:
        """What the exchange brings, whose answer has come; None if the connection has ended
        instead. Raises as `result`.
        """
        try:
            self._received = self._read()
        except Unreachable:
            return None
        return self.result()

    def result(self) -> dict[str, Value]:
        """What the exchange brings; it is over then.

        Raises:
            PeerLost: the server cannot be reached for longer than the heartbeat allows.
            BiremeError: the server refused, or the job has failed elsewhere.
        """
        keeps = self._session.durable and self._unsettled and not self._settles
        try:
            received = self._persist()
            if isinstance(received.message, m.Refused):
                raise refused(self.endpoint, received.message)
        except BaseException:
            keeps = False
            raise
        finally:
            self._end_exchange(keeps)
        if isinstance(received.message, m.Values):
            self._seen = max(self._seen, received.message.version)
        tally.received += received.layout.size
        arena = self._session.arena
        self.relies = self.relies and not self._settles
        if self._settles and arena is not None:
            arena.clear()
        lent = self._lent
        if received.message.place is None or lent is None:
            return received.values
        taken: dict[str, Value] = {}
        for name, value in received.values.items():
            if name in lent:
                taken[name] = value
            else:
                taken[name] = value.copy() if type(value) is np.ndarray else copied(value)
        return taken

    def _end_exchange(self, keeps: bool) -> None:
        """Forget the exchange, unless it `keeps` pushes that a server which is restarted will need
        again. In their repetition, the question that was answered is an empty one.
        """
        self._exchange = None
        if keeps:
            again = self._numbered(self._sequence, answer=False)
            self._frames[-1] = [encode(m.Pull(**again, names=(), gated=False))]
        else:
            self._frames, self._held, self._unsettled = [], [], False

    def _persist(self) -> Received:
        """Read the answer, over as many connections as it takes."""
        lost_at: float | None = None
        while True:
            if self._job.failure is not None:
                self._job.check()
            if self._received is not None:
                received, self._received = self._received, None
                return received
            try:
                if lost_at is not None:
                    self._again()
                return self._read()
            except Unreachable as error:
                self._job.check()
                lost_at = time.monotonic() if lost_at is None else lost_at
                time.sleep(PAUSE)
                since = time.monotonic() - lost_at
                gone = since > HEARTBEATS_TURN and self.gone
                if gone or since > max(self._times.away, self.patience):
                    self._job.check()
                    raise self._lost(since, error) from None

    def _again(self) -> None:
        """Everything once more, on a new connection."""
        tally.retries += 1
        first = self._sequence - len(self._frames) + 1
        known = self._session
        given = self.endpoint, self._job, known, first, self._seen, self.relies
        self._session = found = greet_again(*given)
        if found.life != known.life:
            self.process.close()
            self.process = Watched(found.welcomed.process)
        self._decoder = Decoder(attach=self._mappings)
        self._exchange = self._session.carrier.exchange(self._times.deadline)
        for parts in self._frames:
            self._exchange.write(parts)
        self._exchange.end()

    def _read(self) -> Received:
        assert self._exchange is not None
        received = self._exchange.receive(self._decoder)
        if isinstance(received.message, m.Refused) and received.message.kind == m.NOT_GREETED:
            raise Unreachable(received.message.text, peer=self.name)  # it is another life by now
        return received

    def _lost(self, since: float, error: Exception) -> PeerLost:
        return PeerLost(
            f"{self.name} is lost: unreachable for {since:.1f} s, at step {self.step} ({error})",
            peer=self.name,
            step=self.step,
            hint="see that server's log; the time is "
            f"FLAGS_{'rejoin' if self.patience else 'heartbeat'}_seconds",
        )

    # -- the end ---------------------------------------------------------------------------
    def close(self) -> None:
        """Free the connections."""
        self._session.close(self.endpoint)
        self.endpoint.close()
        self.process.close()

    def cancel(self) -> None:
        """Wake whoever waits in `result`."""
        exchange = self._exchange
        if exchange is not None:
            exchange.cancel()
