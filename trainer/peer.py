"""One server as a trainer sees it: greet it, write an exchange while the step goes on, read its
end.

Frames are numbered per server. A lost connection is answered by sending the whole exchange again
under the same numbers: the server knows which of it has taken effect. The file knows frames and
time, no programs.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Container, Mapping
from typing import Any

import msgspec
import numpy as np

from bireme import flags
from bireme.errors import BiremeError, DeadlineExceeded, PeerLost, ProtocolError
from bireme.rpc import messages as m
from bireme.rpc.codec import (
    Buffer,
    Decoder,
    Received,
    Value,
    decode,
    encode,
    framed,
    joined,
    parts_of,
)
from bireme.rpc.door import Door
from bireme.rpc.layouts import describe
from bireme.rpc.liveness import Times
from bireme.rpc.refusals import raised
from bireme.rpc.shared import Attached, Outbox
from bireme.rpc.stream import Stream, StreamExchange
from bireme.rpc.tally import tally
from bireme.rpc.wire import Exchange, Unreachable, Wire

from .parcels import copied, outbox, size_of
from .rooms import Rooms

__all__ = ["PAUSE", "Peer"]

SMALL = 64 << 10  # arrays below this size travel together
FUSED = 512 << 10  # and leave when they amount to this
PAUSE = 0.1
SYNC = 0


class Peer:
    """A server and the exchange that is open with it. One thread uses it at a time; `cancel` may
    come from any.
    """

    def __init__(
        self,
        wire: Wire,
        trainer: int,
        incarnation: int,
        times: Times,
        failure: Callable[[], BiremeError | None],
        rooms: Rooms | None = None,
    ) -> None:
        self.wire = wire
        self.mode = -1
        self._trainer = trainer
        self._incarnation = incarnation
        self._times = times
        self._failure = failure
        self._server = 0  # incarnation of the server
        self._sequence = 0
        self._step = 0
        self._rooms = rooms or Rooms()
        self._held: list[Value] = []  # what the server reads where it lies
        self._frames: list[list[Buffer]] = []
        self._small: dict[str, Value] = {}
        self._small_size = 0
        self._stream: Exchange | StreamExchange | None = None
        self._outbox: Outbox | None = None
        self._attached = Attached()
        self._door: Door | Stream | None = None
        self._received: Received | None = None
        self._settles = False  # whether the exchange's answer means that its pushes were used
        self._rows = False  # whether it brings rows of tables
        self._lent: Container[str] = ()  # variables that may stay where the server put them

    @property
    def name(self) -> str:
        return f"server {self.wire.endpoint}"

    @property
    def shares(self) -> bool:
        """Whether the server reads this process's memory."""
        return self._outbox is not None

    @property
    def run(self) -> int:
        """Which life of the server this is; later ones are larger."""
        return self._server

    @property
    def open(self) -> bool:
        """Whether an exchange has begun."""
        return bool(self._frames or self._small)

    # -- greeting --------------------------------------------------------------------------
    def greet(self) -> None:
        """Say hello, and wait for a server that has not started yet.

        Raises:
            PeerLost: nobody answers within the time that the join flag allows.
            ConfigError: the server has no place for this trainer.
        """
        began = time.monotonic()
        while True:
            left = self._times.join - (time.monotonic() - began)
            if left <= 0:
                raise PeerLost(
                    f"{self.name} did not answer within {self._times.join:.0f} s",
                    peer=self.name,
                    hint="is it started? is the endpoint right? the time is FLAGS_join_seconds",
                )
            try:
                self._hello(min(left, 10.0), wait=True)
                return
            except (Unreachable, DeadlineExceeded):
                waited = time.monotonic() - began
                print(
                    f"trainer {self._trainer} waits for {self.name}: {waited:.0f} s",
                    file=sys.stderr,
                )
                time.sleep(PAUSE)

    def _hello(self, timeout: float, wait: bool) -> None:
        offer = self._outbox or outbox()
        hello = m.Hello(
            trainer=self._trainer,
            incarnation=self._incarnation,
            segment=offer.name if offer else "",
        )
        answer = self.say(hello, timeout, wait)
        if not isinstance(answer, m.Welcome):
            raise ProtocolError(
                f"{self.name} answered hello with {type(answer).__name__}", peer=self.name
            )
        if self._server not in (0, answer.incarnation):
            raise PeerLost(
                f"{self.name} was restarted and has lost what it knew",
                peer=self.name,
                step=self._step,
                hint="restart the whole job, from a checkpoint if there is one",
            )
        self._server, self.mode = answer.incarnation, answer.mode
        self._outbox = offer if answer.shared else None
        self._enter(answer.door, answer.incarnation)

    def _enter(self, door: str, server: int) -> None:
        """Use a shorter way in, if one is offered and it can be reached."""
        if self._door is not None:
            self._door.close()
        self._door = None
        with contextlib.suppress(OSError):
            if door.startswith(":"):
                if flags.get("rpc_stream"):
                    self._door = Stream(int(door[1:]), self.wire.endpoint, server)
            elif door:
                self._door = Door(door, self.wire.endpoint)

    def say(self, message: m.Message, timeout: float, wait: bool = False) -> m.Message:
        """One small request; a refusal is raised."""
        answer = decode([self.wire.call(encode(message)[0], timeout, wait)]).message
        if isinstance(answer, m.Refused):
            raise raised(answer)
        return answer

    # -- writing ---------------------------------------------------------------------------
    def push(self, step: int, name: str, value: Value) -> None:
        """Send a gradient. A small one may leave later: until the exchange ends, the value must
        stay what it is (whoever computes in place looks first whether anybody holds the array).
        """
        self._step = step
        size = size_of(value)
        if size >= SMALL or name in self._small:
            self._flush()
            tally.sent += size
            self._push_large(name, value)
            return
        self._small[name] = value
        self._small_size += size
        if self._small_size >= FUSED:
            self._flush()

    def _push_large(self, name: str, value: Value) -> None:
        push = m.Push(**self._number())
        near = self.shares and type(value) is np.ndarray
        place = self._rooms.place(value) if near else None
        if place is None:
            self._add(push, {name: value})
            return
        self._held.append(value)
        layout, _ = describe({name: value})
        self._write([framed(msgspec.structs.replace(push, place=place), layout.said)])

    def push_all(self, step: int, values: Mapping[str, Value]) -> None:
        """Send several gradients as `push` does; small ones share a payload."""
        sizes = [v.nbytes if type(v) is np.ndarray else size_of(v) for v in values.values()]
        if sum(sizes) < FUSED and max(sizes, default=0) < SMALL and not self._small:
            self._step = step
            self._small, self._small_size = dict(values), sum(sizes)
            return
        for name, value in values.items():
            self.push(step, name, value)

    def _flush(self) -> None:
        if self._small:
            tally.sent += self._small_size
            small, self._small, self._small_size = self._small, {}, 0
            self._add(m.Push(**self._number()), small)

    def rounds(self, strict: bool) -> bool:
        """Whether a barrier belongs here."""
        return self.mode == SYNC

    def barrier(self, step: int) -> None:
        """Close the round of this trainer."""
        self._step = step
        self._flush()
        self._add(m.Barrier(**self._number()))

    def pull(
        self,
        step: int,
        names: tuple[str, ...],
        gated: bool = True,
        lent: Container[str] = (),
    ) -> None:
        """Ask for variables; `result` brings them. Those that are `lent` need not be copied: they
        are used before the next call.
        """
        self._step = step
        self._flush()
        self._settles, self._rows, self._lent = gated, False, lent
        self._add(m.Pull(**self._number(answer=True), names=names, gated=gated))
        self._end()

    def look_up(self, step: int, ids: Mapping[str, Value]) -> None:
        """Ask for rows of tables; `result` brings them."""
        self._step = step
        self._settles, self._rows = False, True
        self._add(m.Lookup(**self._number(answer=True)), ids)
        self._end()

    def share(self, step: int, values: Mapping[str, Value]) -> None:
        """Bring arrays that all trainers shall have; `result` brings those of all."""
        self._step = step
        self._flush()
        self._settles, self._rows = False, False
        self._add(m.Share(**self._number(answer=True)), values)
        self._end()

    def save(self, step: int, folder: str, parts: tuple[str, ...]) -> None:
        """Ask for this server's part of a checkpoint; `result` says that it was copied."""
        self._step = step
        self._flush()
        self._settles, self._rows = False, False
        self._add(m.Save(**self._number(answer=True), folder=folder, parts=parts))
        self._end()

    def _number(self, answer: bool = False) -> dict[str, Any]:
        self._sequence += 1
        return {
            "trainer": self._trainer,
            "incarnation": self._incarnation,
            "sequence": self._sequence,
            "step": self._step,
            "answer": answer,
        }

    def _add(self, message: m.Message, values: Mapping[str, Value] | None = None) -> None:
        if isinstance(self._door, Stream):
            self._write(parts_of(message, values))
        else:
            self._write([*encode(message, values, self._outbox.take if self._outbox else None)])

    def _write(self, pieces: list[Buffer]) -> None:
        self._frames.append(pieces)
        if self._stream is None:
            self._stream = self._begin()
        self._send(self._stream, pieces)

    def _send(self, stream: Exchange | StreamExchange, pieces: list[Buffer]) -> None:
        if isinstance(stream, StreamExchange):
            stream.write(pieces)
        else:
            stream.write(joined(pieces))

    def _begin(self) -> Exchange | StreamExchange:
        if self._door is not None:
            return self._door.exchange(self._times.deadline)
        return self.wire.exchange(self._times.deadline, brief=self._outbox is not None)

    def _end(self) -> None:
        assert self._stream is not None
        self._stream.close()

    # -- reading ---------------------------------------------------------------------------
    @property
    def door(self) -> int | None:
        """What becomes readable when the answer comes; None if only `result` can wait for it."""
        return self._door.fileno() if self._door is not None else None

    def receive(self) -> bool:
        """Read the answer, which has come; False if the connection has ended instead."""
        try:
            self._received = self._read()
        except Unreachable:
            return False
        return True

    def result(self) -> dict[str, Value]:
        """What the exchange brings; it is over then.

        Raises:
            PeerLost: the server cannot be reached for longer than the heartbeat allows.
            BiremeError: the server refused, or the job has failed elsewhere.
        """
        try:
            received = self._persist()
        finally:
            self._frames, self._stream, self._held = [], None, []
        if isinstance(received.message, m.Refused):
            raise raised(received.message)
        tally.received += received.size
        if self._settles and self._outbox is not None:
            self._outbox.clear()
        if received.message.place is None or self._rows:
            return received.values  # rows of tables are used before the next call
        lent = self._lent
        return {
            name: value if name in lent else copied(value)
            for name, value in received.values.items()
        }

    def _persist(self) -> Received:
        """Read the answer, over as many connections as it takes."""
        lost_at: float | None = None
        while True:
            self._check()
            if self._received is not None:
                received, self._received = self._received, None
                return received
            try:
                if lost_at is not None:
                    self._again()
                return self._read()
            except Unreachable as error:
                self._check()
                now = time.monotonic()
                lost_at = now if lost_at is None else lost_at
                if now - lost_at > self._times.silence:
                    raise self._lost(now - lost_at, error) from None
                time.sleep(PAUSE)

    def _check(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise failure

    def _again(self) -> None:
        """Everything once more, on a new stream."""
        tally.retries += 1
        try:
            self._hello(max(PAUSE, self._times.silence / 4), wait=True)
        except DeadlineExceeded as error:
            raise Unreachable(error.message, peer=self.name) from None
        self._stream = self._begin()
        for pieces in self._frames:
            self._send(self._stream, pieces)
        self._stream.close()

    def _read(self) -> Received:
        assert self._stream is not None
        decoder = Decoder(attach=self._attached)
        if isinstance(self._stream, StreamExchange):
            return self._stream.receive(decoder)
        while (piece := self._stream.read()) is not None:
            received = decoder.feed(piece)
            if received is not None:
                return received
        raise Unreachable(f"{self.name} ended the exchange without an answer", peer=self.name)

    def _lost(self, since: float, error: Exception) -> PeerLost:
        return PeerLost(
            f"{self.name} is lost: unreachable for {since:.1f} s, at step {self._step} ({error})",
            peer=self.name,
            step=self._step,
            hint="see that server's log; the time is FLAGS_heartbeat_seconds",
        )

    def close(self) -> None:
        """Free the connection."""
        if self._door is not None:
            self._door.close()
        self.wire.close()

    def cancel(self) -> None:
        """Wake whoever waits in `result`."""
        stream = self._stream
        if stream is not None:
            stream.cancel()
