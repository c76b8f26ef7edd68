"""The same over real sockets, through a proxy that cuts connections in the middle of frames."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bireme import flags
from bireme.ir import Program
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening, native_methods
from bireme.net.heartbeat import Times
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates
from bireme.runtime.scope import Scope
from bireme.trainer.trainer import Trainer
from tests.support.cluster import side_by_side
from tests.support.proxy import Proxy
from tests.support.server_thread import ServerThread
from tests.support.thorough import seeds

from .counting import MODES, STEPS, TRAINERS, Pushes, started, training

pytestmark = pytest.mark.wire

SEEDS = seeds(2, 6)
LIMITS = Limits(silence=20.0, join=20.0, patience=30.0, farewell=0.3)
TIMES = Times(beat=0.2, silence=3.0, deadline=30.0, join=20.0, grace=5.0)


@pytest.fixture(autouse=True)
def _sockets_only() -> None:
    flags.set_flags({"rpc_shared_memory": False})


class Live(ServerThread):
    """One real server, in a thread."""

    def __init__(
        self, program: Program, scope: Scope, prepare: Callable[[int], Callable[[], None]]
    ) -> None:
        (op,) = program.global_block().ops
        settings = read_settings(op, program)
        self.name = settings.endpoint
        updates = Updates(program, settings, scope, prepare)
        self.service = Server(Core(settings, LIMITS), updates, tick=0.05)
        self.begin()

    async def _serve(self) -> None:
        async with listening("127.0.0.1:0", native_methods(self.service), 0.5) as port:
            self._serving(port)
            await self.service.run()


@contextmanager
def behind_proxies(mode: str, seed: int) -> Iterator[tuple[dict[str, Proxy], Pushes]]:
    """Servers by name, as the proxies before them; what they apply."""
    live: list[Live] = []
    with ExitStack() as stack:
        applied = started(lambda *given: live.append(Live(*given)), mode)
        for server in live:
            stack.callback(server.close)
        proxies = {
            server.name: Proxy(server.endpoint, 2 * seed + k) for k, server in enumerate(live)
        }
        for proxy in proxies.values():
            stack.callback(proxy.close)
        yield proxies, applied


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mode", MODES)
def test_pushes_sent_are_pushes_applied_and_none_twice(mode: str, seed: int) -> None:
    sent: list[Any] = [Counter() for _ in range(TRAINERS)]
    with behind_proxies(mode, seed) as (proxies, applied):

        def dial(name: str) -> GrpcEndpoint:
            wire = GrpcEndpoint(proxies[name].endpoint, 5.0)
            wire.endpoint = name
            return wire

        trainers = [Trainer(n, dial, TIMES) for n in range(TRAINERS)]
        tasks = {f"{t}": lambda t=t: training(trainers[t], mode, sent[t]) for t in range(TRAINERS)}
        ended = side_by_side(tasks, 90)
        assert not any(ended.values()), ended
    assert sum(sent, Counter()) == applied
    assert sum(applied.values()) >= 2 * STEPS * TRAINERS
    assert sum(proxy.passed for proxy in proxies.values()) > 4000  # it did go through them
    assert sum(proxy.cuts for proxy in proxies.values()) > 0
