"""The effect of `listen_and_serv`: serve until every trainer has completed, then let the script
go on.
"""

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bireme import flags
from bireme.ir import Operator
from bireme.rpc.door import opened
from bireme.rpc.memory import keep_memory
from bireme.rpc.refusals import raised
from bireme.rpc.server import listening, native_methods, unary_methods
from bireme.rpc.stream import accepting
from bireme.rpc.tally import Sample, tally

from . import events as e
from .books import Account
from .core import Core
from .fluid_service import FluidService
from .modes import mode_of
from .roll import Limits
from .service import Service, refused
from .settings import Settings, read_settings
from .updates import Updates

__all__ = ["host", "limits", "serve"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def limits() -> Limits:
    """The times that this process's flags ask for; detection leaves room to tell the others in
    time.
    """
    heartbeat = float(flags.get("heartbeat_seconds"))
    return Limits(
        silence=0.6 * heartbeat,
        quiet=float(flags.get("worker_update_interval_secs")),
        join=float(flags.get("join_seconds")),
        patience=max(1.0, flags.get("rpc_deadline") / 1000 - 5),
        farewell=0.2 * heartbeat,
    )


def serve(ops: list[Operator], context: Any) -> Callable[[Any], None]:
    """Bind a server to its program; running it blocks until the job ends.

    Raises (when run):
        PeerLost, Aborted: a trainer was lost or gave up.
        ConfigError: the endpoint cannot be taken.
        FormatError: the checkpoint to go on from is damaged, or belongs to another model.
    """
    (op,) = ops
    settings = read_settings(op, context.program)

    def run(env: Any) -> None:
        def prepare(block: int) -> Callable[[], None]:
            ready: Callable[[], None] = context.executor.prepare(context.program, block, env.scope)
            return ready

        updates = Updates(context.program, settings, env.scope, prepare)
        if folder := updates.keeper.resume():
            print(f"server {settings.endpoint} goes on from {folder}", file=sys.stderr)
        host(settings, updates, limits())

    return run


def host(settings: Settings, updates: Updates, times: Limits) -> None:
    """Run one server to its end in this thread; a signal ends it cleanly."""
    keep_memory()
    signals: list[int] = []
    core = Core(settings, times)
    service = Service(core, updates, tick=min(0.25, times.silence / 20))
    account = Account(
        core,
        settings.endpoint,
        mode_of(settings).name,
        time.time,
        lambda: _gauges(service, updates),
    )
    tally.enter("server", settings.index)
    tally.sources.append(account)
    try:
        failure = asyncio.run(_serve(settings, service, updates, times, signals))
    finally:
        tally.sources.remove(account)
        service.close()
    if service.error is not None or failure is not None:
        tally.note(service.error or (failure and failure.text))
    if signals:
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])
    if service.error is not None:
        raise service.error
    if failure is not None:
        raise raised(refused(failure))


def _gauges(service: Service, updates: Updates) -> Iterator[Sample]:
    """What grows and shrinks beside the core."""
    yield Sample("bireme_queue_depth", service.queued, {"queue": "updates"})
    for table in updates.tables:
        yield Sample("bireme_table_rows", len(table), {"table": table.name})
        yield Sample("bireme_table_bytes", table.nbytes, {"table": table.name})


async def _serve(
    settings: Settings, service: Service, updates: Updates, times: Limits, signals: list[int]
) -> e.Failure | None:
    with _obeying(service, signals):
        fluid = FluidService(service, updates, settings.trainers)
        handlers = {**native_methods(service), **unary_methods(fluid.methods())}
        async with (
            opened(service) as service.door,
            _streams(service, settings.endpoint) as service.stream,
            listening(settings.endpoint, handlers, times.silence),
        ):
            print(
                f"server {settings.endpoint} serves {settings.trainers} trainer(s)",
                file=sys.stderr,
                flush=True,
            )
            return await service.run()


def _streams(service: Service, endpoint: str) -> contextlib.AbstractAsyncContextManager[str]:
    if flags.get("rpc_stream"):
        return accepting(service, endpoint, service.incarnation)
    return contextlib.nullcontext("")


@contextlib.contextmanager
def _obeying(service: Service, signals: list[int]) -> Any:
    """SIGTERM and Ctrl-C end the server through the core, so that the trainers hear of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def obey(number: int) -> None:
        signals.append(number)
        service.stop(f"it was ended by {signal.Signals(number).name}")

    for number in SIGNALS:
        loop.add_signal_handler(number, obey, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
