"""An in-process cluster: real servers and trainers, with function calls where sockets would be.

`LocalEndpoint` carries the same bytes as gRPC. Servers live on one event loop in a thread of its
own; trainers are threads of the test. `faults.py` puts faults on the way.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

import numpy as np

import bireme.ops  # noqa: F401  # the rows
from bireme.errors import BiremeError, DeadlineExceeded
from bireme.io.disk import Disk
from bireme.ir import Program, VarType
from bireme.net.carriers import Carrier, Unreachable, answers
from bireme.net.error_replies import raised
from bireme.net.frames import Buffer, Decoder, Received, pieces_of
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening, native_methods
from bireme.net.heartbeat import Times
from bireme.net.messages import Offer, TcpPort, UnixSocket
from bireme.net.socket_client import connect
from bireme.net.socket_server import accepting
from bireme.pserver.journal.records import Known
from bireme.pserver.journal.recovery import begin, forget
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import Settings, read_settings
from bireme.pserver.shell.server import Server as Shell
from bireme.pserver.store.updates import Updates
from bireme.runtime.scope import Scope
from bireme.trainer.trainer import Trainer

LIMITS = Limits(silence=20.0, join=20.0, patience=30.0, farewell=0.3)
TIMES = Times(beat=0.1, silence=20.0, deadline=30.0, join=20.0, grace=5.0)


class Loop:
    """An event loop in a thread of its own. Once closed it takes nothing more: whoever is late
    hears that nobody is there, as he would from a socket.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)  # where gRPC looks for it
        self._loop.run_forever()

    def start(self, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> Future[Any]:
        with self._lock:
            self._check()
            return asyncio.run_coroutine_threadsafe(work(*given), self._loop)

    def soon(self, act: Callable[..., Any], *given: Any) -> None:
        with self._lock:
            self._check()
            self._loop.call_soon_threadsafe(act, *given)

    def _check(self) -> None:
        if self._closed:
            raise Unreachable("the cluster is over")

    def close(self) -> None:
        with self._lock:
            self._closed = True
        asyncio.run_coroutine_threadsafe(_end_all(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


class LocalExchange:
    """Frames to a server on an event loop, and its answer; see `carriers.Exchange`."""

    def __init__(self, server: "Server", loop: Loop) -> None:
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        self._loop = loop
        self._task: Future[Any] | None = None
        server.exchanges.append(self)
        if server.dead:
            return
        with suppress(Unreachable):  # to open never fails: whoever reads will see
            self._task = loop.start(self._serve, server.service)

    async def _serve(self, server: Shell) -> None:
        try:
            async for piece in answers(server.connect(), self._pieces()):
                self._answers.put(piece)
            self._answers.put(None)
        except asyncio.CancelledError:
            self._answers.put(Unreachable("cancelled"))

    async def _pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._requests.get()) is not None:
            yield piece

    def write(self, parts: Sequence[Buffer]) -> None:
        with suppress(Unreachable):
            for piece in pieces_of(parts):
                self._loop.soon(self._requests.put_nowait, piece)

    def end(self) -> None:
        with suppress(Unreachable):
            self._loop.soon(self._requests.put_nowait, None)

    def receive(self, decoder: Decoder) -> Received:
        if self._task is None:
            raise Unreachable("the cluster is over")
        while (answer := self._answers.get(timeout=30)) is not None:
            if isinstance(answer, Exception):
                raise answer
            received = decoder.feed(answer)
            if received is not None:
                return received
        raise Unreachable("no answer")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._answers.put(Unreachable("cancelled"))


class LocalEndpoint:
    """Function calls instead of a socket; see `carriers.Endpoint`. `servers` says who is there."""

    def __init__(self, endpoint: str, servers: "Mapping[str, Server]", loop: Loop) -> None:
        self.endpoint = endpoint
        self._servers = servers
        self._loop = loop

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        server = self._servers[self.endpoint]
        if server.unable is not None:
            raise server.unable
        if server.dead:
            raise Unreachable("killed by the test")
        try:
            calling = self._loop.start(server.service.call, request)
            server.calls.add(calling)
            if server.dead:  # since it was called
                calling.cancel()
            answer: bytes = calling.result(timeout)
        except CancelledError:
            raise Unreachable("nobody is there") from None
        except Exception as error:
            if server.dead:
                raise Unreachable("killed by the test") from None
            if not isinstance(error, TimeoutError):
                raise
            raise DeadlineExceeded(f"{self.endpoint} did not answer in {timeout} s") from None
        if server.dead:
            raise Unreachable("killed by the test")
        return answer

    def open(self, offers: Sequence[Offer], life: int, key: bytes) -> Carrier:
        return connect(offers, "127.0.0.1:0", life, key) or self

    def exchange(self, timeout: float) -> LocalExchange:
        return LocalExchange(self._servers[self.endpoint], self._loop)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class Server:
    """One server of a cluster. Exchanges go by function calls, or by the named carrier."""

    def __init__(
        self,
        settings: Settings,
        updates: Updates,
        loop: Loop,
        limits: Limits,
        carrier: str = "",
        known: Known | None = None,
    ) -> None:
        self.dead = False
        self.unable: BiremeError | None = None  # why nobody can take its place
        self.exchanges: list[LocalExchange] = []
        self.calls: WeakSet[Future[Any]] = WeakSet()
        self.core = Core(settings, limits, known)
        self.updates = updates
        self.service = Shell(self.core, updates, tick=0.05)
        self.outcome: Future[Any] = loop.start(self.service.run)
        self.port = 0
        self._loop = loop
        self._left = asyncio.Event()
        self._listening: Future[None] | None = None
        if carrier:
            ready: Future[None] = Future()
            self._listening = loop.start(self._listen, carrier, ready)
            ready.result(10)

    async def _listen(self, carrier: str, ready: "Future[None]") -> None:
        """Until the cluster closes."""
        server = self.service
        if carrier == "grpc":
            async with listening("127.0.0.1:0", native_methods(server), 5.0) as self.port:
                ready.set_result(None)
                await self._left.wait()
            return
        kind = {"unix": UnixSocket, "tcp": TcpPort}[carrier]
        async with accepting(server, "127.0.0.1:0", server.incarnation) as offers:
            server.carriers = tuple(offer for offer in offers if isinstance(offer, kind))
            ready.set_result(None)
            await self._left.wait()

    def kill(self) -> None:
        """Say and do nothing from now on, as a process that is killed."""
        self.dead = True
        for exchange in self.exchanges:
            exchange.cancel()
        for call in list(self.calls):
            call.cancel()

    @contextmanager
    def succeeded(self) -> Iterator[None]:
        """Another begins here in its place; trainers hear why it cannot."""
        try:
            yield
        except BiremeError as error:
            self.unable = error

    def close(self) -> None:
        """Listen no longer."""
        if self._listening is not None:
            self._loop.soon(self._left.set)
            self._listening.result(10)

    def result(self) -> None:
        """Wait for the server's end; raises what ended it."""
        failure = self.outcome.result(30)
        if self.service.error is not None:
            raise self.service.error
        if failure is not None:
            raise raised(failure)


class Cluster:
    """Servers by endpoint; `dial` reaches them."""

    def __init__(self, limits: Limits = LIMITS, times: Times = TIMES, carrier: str = "") -> None:
        self.carrier = carrier
        self.limits = limits
        self.times = times
        self.servers: dict[str, Server] = {}
        self.disk: Disk | None = None  # where the next server records its rounds
        self._trainers: list[Trainer] = []
        self.loop = Loop()

    def serve(
        self, program: Program, scope: Scope, prepare: Callable[[int], Callable[[], None]]
    ) -> Server:
        """Start the server that `program`'s listen_and_serv describes."""
        (op,) = [op for op in program.global_block().ops if op.type == "listen_and_serv"]
        settings = read_settings(op, program)
        return self._serve(settings, program, scope, prepare)

    def _serve(self, settings: Settings, *given: Any) -> Server:
        program, scope, prepare = given
        updates = Updates(program, settings, scope, prepare)
        known = begin(program, settings, updates, time.time_ns(), self.disk)
        rejoin = 20.0 if updates.recorder is not None else 0.0
        limits = replace(self.limits, rejoin=rejoin)
        server = Server(settings, updates, self.loop, limits, self.carrier, known)
        self.servers[settings.endpoint] = server
        server.outcome.add_done_callback(lambda done: self._ended(server, settings, *given))
        return server

    def _ended(self, server: Server, *given: Any) -> None:
        """As the process does: serve again if the job was started again as a whole."""

        def again() -> None:
            server.kill()
            server.service.close()
            with server.succeeded():
                forget(server.updates)
                self._serve(*given)

        if server.service.starts_over:
            threading.Thread(target=again).start()

    def dial(self, endpoint: str) -> Any:
        server = self.servers[endpoint]
        if not server.port:
            return LocalEndpoint(endpoint, self.servers, self.loop)
        reached = GrpcEndpoint(f"127.0.0.1:{server.port}", 5.0)
        reached.endpoint = endpoint
        return reached

    def trainer(
        self,
        number: int,
        dial: Callable[[str], Any] | None = None,
        on_stuck: Callable[[BiremeError], None] | None = None,
        grace: float | None = None,
    ) -> Trainer:
        times = self.times if grace is None else replace(self.times, grace=grace)
        made = Trainer(number, dial or self.dial, times, on_stuck)
        self._trainers.append(made)
        return made

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.silence()
        for server in self.servers.values():
            server.close()
        self.loop.close()
        for server in self.servers.values():
            server.service.close()


async def _end_all() -> None:
    """Cancel whatever still runs on this loop, and see it end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def cluster(limits: Limits = LIMITS, times: Times = TIMES, carrier: str = "") -> Iterator[Cluster]:
    """A cluster that ends with the block; exchanges go by function calls, or over a `carrier`:
    unix, tcp or grpc.
    """
    made = Cluster(limits, times, carrier)
    try:
        yield made
    finally:
        made.close()


def side_by_side(tasks: Mapping[str, Callable[[], Any]], timeout: float = 60) -> dict[str, Any]:
    """Run roles as threads; their results, or the error that each ended with."""

    def outcome(task: Callable[[], Any]) -> Any:
        try:
            return task()
        except BiremeError as error:
            return error

    with ThreadPoolExecutor(len(tasks)) as pool:
        running = {name: pool.submit(outcome, task) for name, task in tasks.items()}
        return {name: future.result(timeout) for name, future in running.items()}


# -- a server program by hand ------------------------------------------------------------------
def tiny_server(
    endpoint: str = "s0",
    trainers: int = 2,
    mode: int = 0,
    params: tuple[str, ...] = ("w",),
    size: int = 4,
    rows: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Program, Scope]:
    """Parameters of `size` floats, zero at first, and one block each; the blocks hold no
    operators. `rows`: of these parameters the gradients are rows, and so many there are.
    """
    program, scope = Program(), Scope()
    block = program.global_block()
    names, pairs = [], []
    for param in params:
        block.create_var(name=param, shape=(size,), dtype="float32", persistable=True)
        scope.var(param).put(np.zeros(size, np.float32))
        grads = (
            [f"{param}@GRAD.trainer_{i}" for i in range(trainers)]
            if mode == 0
            else [f"{param}@GRAD"]
        )
        kind = VarType.SELECTED_ROWS if param in rows else VarType.LOD_TENSOR
        shape = (rows[param], size) if param in rows else (size,)
        for grad in grads:
            block.create_var(name=grad, shape=shape, dtype="float32", type=kind, persistable=True)
        names += grads
        pairs.append(f"{param}@GRAD:{program.add_block(0).idx}")
    refs = [_ref(pair) for pair in pairs]
    attrs = {
        "endpoint": endpoint,
        "Fanin": trainers,
        "distributed_mode": mode,
        "optimize_blocks": refs,
        "grad_to_block_id": pairs,
        "pserver_id": 0,
    }
    block.append_op(type="listen_and_serv", inputs={"X": names}, outputs={}, attrs=attrs)
    return program, scope


def _ref(pair: str) -> Any:
    from bireme.ir import BlockRef

    return BlockRef(int(pair.rpartition(":")[2]))


def descending(program: Program, scope: Scope) -> Callable[[int], Callable[[], None]]:
    """Blocks of `tiny_server` by hand: the parameter goes down by the mean of its gradients."""
    (op,) = program.global_block().ops
    settings = read_settings(op, program)
    divisor = settings.trainers if settings.mode == 0 else 1

    def prepare(block: int) -> Callable[[], None]:
        grads = settings.owned_by(block)
        param = grads[0].partition("@GRAD")[0]

        def run() -> None:
            total = sum(scope.var(name).value for name in grads)
            scope.var(param).put(scope.var(param).value - total / divisor)

        return run

    return prepare
