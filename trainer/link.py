"""A trainer's link to its servers: pushes that start at once, one exchange per server and step,
signs of life.

It knows servers and values by name; what the operators of a program mean is read in `routes`.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from bireme.errors import BiremeError, ConfigError, DeadlineExceeded, UnsupportedError
from bireme.rpc import messages as m
from bireme.rpc.codec import Value
from bireme.rpc.liveness import Heart, Times
from bireme.rpc.tally import tally
from bireme.rpc.wire import Dial, Foreign, Unreachable
from bireme.runtime.arrays import Array

from .peer import PAUSE, Peer
from .rooms import Rooms

__all__ = ["Link"]

if TYPE_CHECKING:
    from .fluid_peer import FluidPeer

    AnyPeer = Peer | FluidPeer

Result = TypeVar("Result")


class Link:
    """One trainer, all of its servers. Used by one thread at a time; hearts beat beside it."""

    def __init__(
        self,
        trainer: int,
        dial: Dial,
        times: Times,
        on_stuck: Callable[[BiremeError], None] | None = None,
    ) -> None:
        self.trainer = trainer
        self.step = 0
        self._dial = dial
        self._times = times
        self._on_stuck = on_stuck
        self._incarnation = time.time_ns() ^ (os.getpid() << 40) & ((1 << 62) - 1)
        self._peers: dict[str, AnyPeer] = {}
        self._rooms = Rooms()
        self._hearts: list[Heart] = []
        self._readers = ThreadPoolExecutor(64, "exchange")
        self._lock = threading.Lock()
        self._failure: BiremeError | None = None
        self._noticed = threading.Event()
        self._over = False

    @property
    def over(self) -> bool:
        """Whether this trainer has finished or given up, or its job has failed."""
        return self._over or self._failure is not None

    # -- the step --------------------------------------------------------------------------
    def push(self, endpoint: str, name: str, value: Value) -> None:
        """Send one gradient to its server; what cannot be sent is found out when the step ends.
        The value stays what it is until then.
        """
        peer = self._peers.get(endpoint)
        if peer is None or self._failure is not None:
            peer = self.peer(endpoint)
        peer.push(self.step, name, value)

    def push_all(self, endpoint: str, values: Mapping[str, Value]) -> None:
        """Send several gradients to one server, as `push` does one by one."""
        self.peer(endpoint).push_all(self.step, values)

    def room(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Memory for a gradient that will be pushed, if a server can read it there."""
        if any(isinstance(peer, Peer) and peer.shares for peer in self._peers.values()):
            return self._rooms.take(name, shape, dtype)
        return None

    def barrier(self, endpoints: Iterable[str], strict: bool) -> None:
        """Close the round at these servers; outside sync there is no round to close.

        Raises:
            ConfigError: the program is synchronous, the server is not.
        """
        for peer in self._at(endpoints):
            if peer.rounds(strict):
                peer.barrier(self.step)
            elif strict:
                raise ConfigError(
                    f"this trainer's program is synchronous, but {peer.name} is not",
                    hint="config.sync_mode and transpile(sync_mode=) must agree in every process",
                )

    def exchange(
        self, wanted: Mapping[str, tuple[str, ...]], lent: Container[str] = ()
    ) -> dict[str, dict[str, Value]]:
        """End the step: ask these servers for variables, and wait until every push has taken
        effect. Values of the names in `lent` may change with the next call of this link.
        """
        peers = self._at(wanted)
        peers += [p for p in self._peers.values() if p.wire.endpoint not in wanted and p.open]
        pushed = any(peer.open for peer in peers)
        for peer in peers:
            peer.pull(self.step, wanted.get(peer.wire.endpoint, ()), lent=lent)
        began = time.perf_counter()
        found = self._results(peers)
        tally.waits.observe(time.perf_counter() - began)
        self.step += pushed
        return found

    def read(self, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, Value]]:
        """Variables as these servers hold them now, whatever round is open."""
        peers = self._at(wanted)
        for peer in peers:
            peer.pull(self.step, wanted[peer.wire.endpoint], gated=False)
        return self._results(peers)

    def look_up(self, wanted: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Value]]:
        """Rows of tables, one round trip to each server."""
        peers = self._at(wanted)
        for peer in peers:
            peer.look_up(self.step, wanted[peer.wire.endpoint])
        return self._results(peers)

    def share(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Arrays that every trainer brings, stacked in the order of trainers; waits for all.

        Raises:
            ConfigError: this trainer knows no server yet.
        """
        if not self._peers:
            raise ConfigError(
                "nothing can be shared before a server is known", hint="run the startup program"
            )
        meeting = min(self._peers)
        (peer,) = self._at([meeting])
        if not isinstance(peer, Peer):
            raise UnsupportedError(
                f"{peer.name} is Fluid's, which brings trainers nothing from each other",
                hint="start the servers with bireme",
            )
        peer.share(self.step, values)
        return self._results([peer])[meeting]

    @property
    def servers(self) -> int:
        """How many servers this trainer knows."""
        return len(self._peers)

    @property
    def run(self) -> int:
        """What tells this job from others that save to the same place."""
        return max((peer.run for peer in self._peers.values() if isinstance(peer, Peer)), default=0)

    def save(self, folder: str, step: int, parts: tuple[str, ...]) -> None:
        """Have every server save its part of a checkpoint as it is now.

        Raises:
            UnsupportedError: a server is Fluid's.
        """
        peers = [peer for peer in self._peers.values() if isinstance(peer, Peer)]
        if len(peers) < len(self._peers):
            raise UnsupportedError(
                "checkpoints of a job with Fluid's servers",
                hint="use fluid.io.save_persistables, or start the servers with bireme",
            )
        for peer in peers:
            peer.save(step, folder, parts)
        self._results(list(peers))

    def _results(self, peers: "list[AnyPeer]") -> dict[str, dict[str, Value]]:
        """Read every server's answer as it comes; the first refusal wakes the others."""
        near = [p for p in peers if p.door is not None]
        far = [p for p in peers if p.door is None]
        own = far.pop() if far and not near else None
        reading = [(p, self._readers.submit(self._own, p.result)) for p in far]
        found = {own.wire.endpoint: self._own(own.result)} if own else {}
        for peer in self._arriving(near):
            if self._own(peer.receive):
                found[peer.wire.endpoint] = self._own(peer.result)
            else:  # to be reached again, which must not keep the others waiting
                reading.append((peer, self._readers.submit(self._own, peer.result)))
        found.update({p.wire.endpoint: answer.result() for p, answer in reading})
        return found

    def _arriving(self, peers: "list[AnyPeer]") -> "Iterator[AnyPeer]":
        """These peers, each when it has something to be read."""
        waiting = {peer.door: peer for peer in peers}
        ready = select.poll()
        for door in waiting:
            ready.register(door or 0, select.POLLIN)
        until = time.monotonic() + self._times.deadline
        while waiting:
            events = ready.poll(max(0.0, until - time.monotonic()) * 1000)
            self._check()
            if not events:
                self._own(lambda: _late(list(waiting.values())))
            for door, _ in events:
                ready.unregister(door)
                yield waiting.pop(door)

    def _own(self, task: Callable[[], Result]) -> Result:
        """Do something whose failure is the job's."""
        try:
            return task()
        except BiremeError as error:
            self.fail(error)
            self._noticed.set()
            raise (self._failure or error) from None

    # -- servers ---------------------------------------------------------------------------
    def peer(self, endpoint: str) -> "AnyPeer":
        """The server at `endpoint`, greeted."""
        return self._at([endpoint])[0]

    def greet(self, endpoints: Iterable[str]) -> None:
        """Make sure that these servers know this trainer."""
        self._at(endpoints)

    def _at(self, endpoints: Iterable[str]) -> "list[AnyPeer]":
        self._check()
        found = []
        for endpoint in endpoints:
            if endpoint not in self._peers:
                self._peers[endpoint] = self._own(lambda at=endpoint: self._meet(at))  # type: ignore[misc]
            found.append(self._peers[endpoint])
        return found

    def _meet(self, endpoint: str) -> "AnyPeer":
        wire = self._dial(endpoint)
        peer = Peer(
            wire, self.trainer, self._incarnation, self._times, lambda: self._failure, self._rooms
        )
        try:
            peer.greet()
        except Foreign:
            wire.close()
            return self._meet_fluid(endpoint)
        heart = Heart(wire, self._beat, self.fail, self._times)
        heart.start()
        self._hearts.append(heart)
        return peer

    def _meet_fluid(self, endpoint: str) -> "AnyPeer":
        """A server that does not know our protocol is taken for one of Fluid's."""
        from bireme.rpc.fluid_client import FluidWire

        from .fluid_peer import FluidPeer

        wire = FluidWire(endpoint)
        return FluidPeer(wire, self.trainer, self._times, lambda: self._failure)

    def _beat(self) -> m.Heartbeat:
        return m.Heartbeat(trainer=self.trainer, incarnation=self._incarnation, step=self.step)

    def _check(self) -> None:
        if self._failure is not None:
            self._noticed.set()
            raise self._failure

    # -- the end ---------------------------------------------------------------------------
    def fail(self, error: BiremeError) -> None:
        """The job has failed: remember why, wake whoever waits, tell the servers."""
        with self._lock:
            if self._failure is not None or self._over:
                return
            self._failure = error
        tally.note(error)
        for peer in list(self._peers.values()):
            peer.cancel()
        self._tell_abort(str(error.args[0]) if error.args else type(error).__name__)
        if self._on_stuck is not None:
            threading.Thread(target=self._watch, daemon=True, name="watch").start()

    def _watch(self) -> None:
        if not self._noticed.wait(self._times.grace) and self._on_stuck and self._failure:
            self._on_stuck(self._failure)

    def abort(self, cause: str) -> None:
        """Tell every server that this trainer gives up; once."""
        with self._lock:
            if self._over or self._failure is not None:
                self._over = True
                return
            self._over = True
        for peer in list(self._peers.values()):
            peer.cancel()
        self._tell_abort(cause)
        self.silence()

    def _tell_abort(self, cause: str) -> None:
        self._tell_all(
            m.Abort(
                trainer=self.trainer, incarnation=self._incarnation, step=self.step, cause=cause
            ),
            patience=2 * PAUSE,
        )

    def close(self) -> None:
        """Say that this trainer has finished; the servers stop waiting for it. Safe to repeat."""
        with self._lock:
            over, self._over = self._over, True
        if not over and self._failure is None:
            self.silence()
            done = m.Complete(trainer=self.trainer, incarnation=self._incarnation)
            self._tell_all(done, patience=self._times.silence)
        self.silence()
        for peer in self._peers.values():
            peer.close()
        self._readers.shutdown(wait=False)

    def _tell_all(self, message: m.Message, patience: float) -> None:
        """The same to all servers, side by side; after `patience` one that is gone need not
        hear.
        """

        def tell(peer: "AnyPeer") -> None:
            until = time.monotonic() + patience
            while not self._told(peer, message) and time.monotonic() < until:
                time.sleep(PAUSE)

        peers = self._peers.values()
        threads = [threading.Thread(target=tell, args=(peer,), daemon=True) for peer in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._times.silence + patience)

    def _told(self, peer: "AnyPeer", message: m.Message) -> bool:
        try:
            peer.say(message, timeout=max(0.5, self._times.silence / 4))
        except (Unreachable, DeadlineExceeded):
            return False
        except BiremeError:  # the server has an end of its own to tell; this one need not hear it
            return True
        return True

    def silence(self) -> None:
        """No more signs of life."""
        for heart in self._hearts:
            heart.stop()


def _late(peers: "list[AnyPeer]") -> None:
    raise DeadlineExceeded(f"{peers[0].name} did not answer in time", peer=peers[0].name)


def leave_now(error: BiremeError) -> None:
    """The job has failed and this process does not notice: say so, and end it."""
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def describe(error: Any) -> str:
    """An uncaught error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
