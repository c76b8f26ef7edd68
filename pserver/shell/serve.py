"""The effect of `listen_and_serv`: serve until every trainer has completed, then let the script
go on.
"""

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

from bireme import flags
from bireme.arrays import blas
from bireme.arrays.malloc import keep_memory
from bireme.ending import at_exit, show
from bireme.errors import BiremeError
from bireme.io.directory_lock import DirectoryLock
from bireme.ir import Operator
from bireme.logs import logger
from bireme.monitoring.counters import Sample, tally
from bireme.net import messages as m
from bireme.net.error_replies import raised
from bireme.net.grpc_server import listening, native_methods, unary_methods
from bireme.net.socket_server import accepting
from bireme.recovery.restarts import allowed, restart_after, restarted
from bireme.runtime.context import Env
from bireme.runtime.effects import Effect, EffectContext

from ..journal.records import Known
from ..journal.recovery import begin, forget
from ..rules.core import Core
from ..rules.members import Limits
from ..rules.rounds import mode_of
from ..rules.server_spec import Settings, read_settings
from ..store.updates import Updates
from .fluid import FluidService
from .metrics_view import MetricsView
from .server import Server

__all__ = ["Serving", "host", "limits"]

_log = logger("server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def limits() -> Limits:
    """The times that this process's flags ask for."""
    heartbeat = float(flags.get("heartbeat_seconds"))
    return Limits(
        silence=heartbeat,
        quiet=float(flags.get("worker_update_interval_secs")),
        join=float(flags.get("rejoin_seconds" if restarted() else "join_seconds")),
        patience=max(1.0, flags.get("rpc_deadline") / 1000 - 5),
        farewell=max(1.0, 0.2 * heartbeat),
        early=int(flags.get("rpc_early_calls")),
    )


class Serving(Effect):
    """One `listen_and_serv`: running it blocks until the job ends.

    Raises (when run):
        PeerLost, Aborted: a trainer was lost or gave up.
        ConfigError: the endpoint cannot be taken, or another job saves to FLAGS_checkpoint_dir.
        FormatError: the checkpoint to go on from is damaged, or belongs to another model.
    """

    def __init__(self, op: Operator, context: EffectContext) -> None:
        self._context = context
        self._settings = read_settings(op, context.program)

    @classmethod
    def bind(cls, ops: list[Operator], context: EffectContext) -> Self:
        (op,) = ops
        return cls(op, context)

    def run(self, env: Env) -> None:
        program, settings = self._context.program, self._settings

        def prepare(block: int) -> Callable[[], None]:
            return self._context.executor.prepare(program, block, env.scope)

        starts_over = True
        withdraw = at_exit(restart_after) if allowed() else None
        with _owning(settings) as lock:
            while starts_over:
                updates = Updates(program, settings, env.scope, prepare)
                updates.keeper.lock = lock
                known = begin(program, settings, updates, time.time_ns())
                starts_over = host(settings, updates, limits(), known)
                if starts_over:
                    _log.info("server %s: the job has begun anew", settings.endpoint)
                    forget(updates)
        if withdraw is not None:
            withdraw()


@contextlib.contextmanager
def _owning(settings: Settings) -> Iterator[DirectoryLock | None]:
    """The lock of this server's part of FLAGS_checkpoint_dir; taken at once if the job saves there.

    Raises:
        ConfigError: another process is the owner.
    """
    root = flags.get("checkpoint_dir")
    if not root:
        yield None
        return

    def say(line: str) -> None:
        _log.info("server %s: %s", settings.endpoint, line)

    part = f"server-{max(0, settings.index)}"
    lock = DirectoryLock(root, part, f"server {settings.endpoint}")
    try:
        if flags.get("checkpoint_every_steps") > 0 or flags.get("durability") == "step":
            lock.take(float(flags.get("heartbeat_seconds")), say)
        yield lock
    finally:
        lock.release()


def host(settings: Settings, updates: Updates, times: Limits, known: Known | None = None) -> bool:
    """Run one server to its end in this thread; a signal ends it cleanly. `known` is what an
    earlier life has recorded. Whether another job has come than that of the record.
    """
    keep_memory()
    signals: list[int] = []
    if updates.recorder is not None:
        times = replace(times, rejoin=float(flags.get("rejoin_seconds")))
    core = Core(settings, times, known)
    ended: list[BiremeError] = []

    def failed(failure: m.Refused) -> None:
        ended.append(raised(failure))
        tally.note(failure.text)
        if not signals and server.error is None:
            show(ended[0])

    server = Server(core, updates, tick=min(0.25, times.silence / 20))
    server.on_failure = failed
    view = MetricsView(
        core,
        settings.endpoint,
        mode_of(settings).name,
        time.time,
        lambda: _gauges(server, updates),
        updates.shards,
    )
    tally.enter("server", settings.index)
    tally.rewinds = restarted()
    tally.sources.append(view)
    try:
        with blas.SINGLE:  # updates run on a thread of their own, from which BLAS takes no orders
            asyncio.run(_serve(settings, server, updates, times, signals))
    finally:
        tally.sources.remove(view)
        tally.steps = int(view.status()["step"])
        server.close()
    if server.starts_over:
        return True
    if updates.recorder is not None:
        updates.recorder.remove()
    if signals:
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
    if server.error is not None:
        tally.note(server.error)
        raise server.error
    if ended:
        raise ended[0]
    return False


def _gauges(server: Server, updates: Updates) -> Iterator[Sample]:
    """What grows and shrinks beside the core."""
    yield Sample("bireme_queue_depth", server.queued, {"queue": "updates"})
    if updates.recorder is not None:
        yield Sample("bireme_record_seconds", updates.recorder.seconds)
        yield Sample("bireme_record_bytes", updates.recorder.size)
    for table in updates.tables:
        yield Sample("bireme_table_rows", len(table), {"table": table.name})
        yield Sample("bireme_table_bytes", table.nbytes, {"table": table.name})


async def _serve(
    settings: Settings, server: Server, updates: Updates, times: Limits, signals: list[int]
) -> None:
    with _obeying(server, signals):
        handlers = native_methods(server)
        if flags.get("rpc_fluid"):
            fluid = FluidService(server, updates, settings.trainers)
            handlers |= unary_methods(fluid.methods())
        async with (
            _sockets(server, settings.endpoint) as server.carriers,
            listening(settings.endpoint, handlers, times.silence),
        ):
            _log.info("server %s serves %d trainer(s)", settings.endpoint, settings.trainers)
            await server.run()


def _sockets(server: Server, endpoint: str) -> contextlib.AbstractAsyncContextManager[Any]:
    return accepting(server, endpoint, server.incarnation)


@contextlib.contextmanager
def _obeying(server: Server, signals: list[int]) -> Any:
    """SIGTERM and Ctrl-C end the server through the core, so that the trainers hear of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def obey(number: int) -> None:
        signals.append(number)
        server.stop(f"it was ended by {signal.Signals(number).name}")

    for number in SIGNALS:
        loop.add_signal_handler(number, obey, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
