"""All servers of one trainer: pushes that start at once, one exchange per server and step.

It knows servers and values by name; what a program's operators mean is read in `instructions`.
"""

import select
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from bireme import flags
from bireme.errors import ConfigError, DeadlineExceeded, ProtocolError
from bireme.job_token import job_token
from bireme.monitoring.counters import tally
from bireme.monitoring.step_clock import RECEIVE, WAIT, step_clock
from bireme.net.carriers import Dial, Foreign
from bireme.net.fluid.client import FluidWire
from bireme.net.frames import Value

from .fluid_server import FluidServer
from .gradient_buffers import GradientBuffers
from .job_state import JobState
from .native_server import NativeServer

__all__ = ["Server", "ServerPool"]

Server: TypeAlias = NativeServer | FluidServer


class ServerPool:
    """Servers by endpoint, greeted when first named. One thread uses it at a time."""

    def __init__(
        self,
        dial: Dial,
        job: JobState,
        met: Callable[[NativeServer], None],
        greeted: Callable[["ServerPool"], None] = lambda pool: None,
    ) -> None:
        self.job = job
        self._dial = dial
        self._met = met  # called with every server that has welcomed this trainer
        self._greeted = greeted  # and then with all, before anything else is said
        self._servers: dict[str, Server] = {}
        self.buffers = GradientBuffers()
        self.shares = False  # whether a server can read gradients where they are computed
        self.durable = False  # whether a server records rounds
        self._readers = ThreadPoolExecutor(64, "exchange")

    def __iter__(self) -> Iterator[Server]:
        return iter(list(self._servers.values()))

    def __len__(self) -> int:
        return len(self._servers)

    # -- the step --------------------------------------------------------------------------
    def push(self, endpoint: str, values: Mapping[str, Value]) -> None:
        """Send gradients to their server, in one message. What cannot be sent is found out when
        the step ends; the values stay what they are until then.
        """
        server = self._servers.get(endpoint)
        if server is None or self.job.failure is not None:
            server = self.server(endpoint)
        server.step = self.job.step
        server.push(values)

    def barrier(self, endpoints: Iterable[str], strict: bool) -> None:
        """Close the round at these servers; outside sync there is no round to close.

        Raises:
            ConfigError: the program is synchronous, the server is not.
        """
        for server in self._at(endpoints):
            if server.rounds(strict):
                server.barrier()
            elif strict:
                raise ConfigError(
                    f"this trainer's program is synchronous, but {server.name} is not",
                    hint="config.sync_mode and transpile(sync_mode=) must agree in every process",
                )

    def exchange(
        self, wanted: Mapping[str, tuple[str, ...]], lent: Container[str] = ()
    ) -> dict[str, dict[str, Value]]:
        """End the step: ask these servers for variables, and wait until every push has taken
        effect. Values of the names in `lent` may change with the next call.
        """
        asked = self._at(wanted)
        others = [s for s in self._servers.values() if s not in asked and s.open]
        pushed = any([server.open for server in asked]) or bool(others)
        for server in (*asked, *others):
            server.pull(wanted.get(server.endpoint.endpoint, ()), lent=lent)
        began = time.perf_counter()
        found = self.results([*asked, *others], WAIT)
        tally.waits.observe(time.perf_counter() - began)
        self.job.step += pushed
        return found

    def read(self, wanted: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, Value]]:
        """Variables as these servers hold them now, whatever round is open."""
        servers = self._at(wanted)
        for server in servers:
            server.pull(wanted[server.endpoint.endpoint], gated=False)
        return self.results(servers)

    def look_up(self, wanted: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Value]]:
        """Rows of tables, one round trip to each server."""
        servers = self._at(wanted)
        for server in servers:
            server.look_up(wanted[server.endpoint.endpoint])
        return self.results(servers)

    @property
    def native(self) -> list[NativeServer]:
        """The servers that are bireme's."""
        return [server for server in self if isinstance(server, NativeServer)]

    @property
    def run(self) -> int:
        """What tells this job from others that save to the same place."""
        return max((server.run for server in self.native), default=0)

    # -- answers ---------------------------------------------------------------------------
    def results(
        self, servers: Iterable[Server], idle: int = RECEIVE
    ) -> dict[str, dict[str, Value]]:
        """Read every server's answer as it comes; the first refusal wakes the others. Until an
        answer comes, the step is in the phase `idle`.
        """
        step_clock.enter(idle)
        near: dict[int, Server] = {}
        far: list[Server] = []
        for server in servers:
            if (descriptor := server.fileno()) >= 0:
                near[descriptor] = server
            else:
                far.append(server)
        own = far.pop() if far and not near else None
        reading = [(s, self._readers.submit(self.job.guard, s.result)) for s in far]
        found = {own.endpoint.endpoint: self.job.guard(own.result)} if own else {}
        for server in self._arriving(near, idle):
            answer = self.job.guard(server.arrived)
            if answer is not None:
                found[server.endpoint.endpoint] = answer
            else:  # to be reached again, which must not keep the others waiting
                reading.append((server, self._readers.submit(self.job.guard, server.result)))
        found.update({s.endpoint.endpoint: answer.result() for s, answer in reading})
        return found

    def _arriving(self, waiting: dict[int, Server], idle: int) -> Iterator[Server]:
        """Servers by descriptor, each when it has something to be read."""
        ready = select.poll()
        for descriptor in waiting:
            ready.register(descriptor, select.POLLIN)
        until = time.monotonic() + self.job.times.deadline
        while waiting:
            events = ready.poll(max(0.0, until - time.monotonic()) * 1000)
            step_clock.enter(RECEIVE)
            if self.job.failure is not None:
                self.job.check()
            if not events:
                self.job.guard(lambda: _late(next(iter(waiting.values()))))
            for descriptor, _ in events:
                ready.unregister(descriptor)
                yield waiting.pop(descriptor)
            if waiting:
                step_clock.enter(idle)

    # -- servers ---------------------------------------------------------------------------
    def server(self, endpoint: str) -> Server:
        """The server at `endpoint`, greeted."""
        return self._at([endpoint])[0]

    def greet(self, endpoints: Iterable[str]) -> None:
        """Make sure that these servers know this trainer."""
        self._at(endpoints)

    def _at(self, endpoints: Iterable[str]) -> list[Server]:
        if self.job.failure is not None:
            self.job.check()
        endpoints = list(endpoints)
        if not self._servers.keys() >= set(endpoints):
            self._meet_all(endpoints)
        found = [self._servers[endpoint] for endpoint in endpoints]
        for server in found:
            server.step = self.job.step
        return found

    def _meet_all(self, endpoints: list[str]) -> None:
        for endpoint in endpoints:
            if endpoint not in self._servers:
                self._servers[endpoint] = self.job.guard(partial(self._meet, endpoint))
        self.job.guard(lambda: self._greeted(self))

    def _meet(self, endpoint: str) -> Server:
        """Greet a server; one that does not know our protocol is taken for one of Fluid's."""
        reached = self._dial(endpoint)
        try:
            server = NativeServer(reached, self.job, self.buffers)
        except Foreign as error:
            reached.close()
            if job_token() and not flags.get("rpc_fluid"):
                raise ProtocolError(
                    error.message,
                    peer=f"server {endpoint}",
                    hint="a job with a token talks to servers of Fluid, which know none, only with "
                    "FLAGS_rpc_fluid=1",
                ) from None
            return FluidServer(FluidWire(endpoint), self.job)
        self.shares |= server.shares
        self.durable |= server.welcomed.durable
        self._met(server)
        return server

    def close(self) -> None:
        """Free the connections."""
        for server in self:
            server.close()
        self._readers.shutdown(wait=False)


def _late(server: Server) -> None:
    raise DeadlineExceeded(f"{server.name} did not answer in time", peer=server.name)
