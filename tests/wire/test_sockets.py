"""The real gRPC shell on port 0, in one process: exchanges, waiting calls, sizes."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.errors import Aborted, ConfigError, DeadlineExceeded
from bireme.net.carriers import Unreachable
from bireme.net.frames import Decoder, decode, encode
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening, native_methods
from bireme.net.heartbeat import Times
from bireme.net.messages import Heartbeat, Hello
from bireme.net.socket_server import accepting
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates
from bireme.trainer.trainer import Trainer
from tests.support.cluster import descending, side_by_side, tiny_server
from tests.support.server_thread import ServerThread

pytestmark = pytest.mark.wire


class Live(ServerThread):
    """One real server in a thread."""

    def __init__(self, trainers: int, size: int) -> None:
        program, scope = tiny_server("127.0.0.1:0", trainers, size=size)
        (op,) = program.global_block().ops
        settings = read_settings(op, program)
        updates = Updates(program, settings, scope, descending(program, scope))
        self.service = Server(Core(settings, Limits(silence=5)), updates)
        self.begin()

    async def _serve(self) -> None:
        async with (
            accepting(
                self.service, "127.0.0.1:0", self.service.incarnation
            ) as self.service.carriers,
            listening("127.0.0.1:0", native_methods(self.service), 5.0) as port,
        ):
            self._serving(port)
            await self.service.run()


@pytest.fixture
def live() -> Iterator[Any]:
    made: list[Live] = []

    def make(trainers: int = 1, size: int = 4) -> Live:
        made.append(Live(trainers, size))
        return made[-1]

    yield make
    for server in made:
        server.close()


def connected(server: Live, number: int) -> Trainer:
    times = Times(beat=0.5, silence=5.0, deadline=20.0, join=10.0)
    return Trainer(number, lambda endpoint: GrpcEndpoint(endpoint, 5.0), times)


def trained(server: Live, trainer: int, size: int, steps: int = 3) -> Any:
    found = {}
    with closing(connected(server, trainer)) as used:
        for _ in range(steps):
            used.servers.push(
                server.endpoint, {f"w@GRAD.trainer_{trainer}": np.ones(size, np.float32)}
            )
            used.servers.barrier([server.endpoint], strict=True)
            found = used.servers.exchange({server.endpoint: ("w",)})
    return found[server.endpoint]["w"]


WAYS = {
    "shared memory": {"rpc_shared_memory": True},
    "streams": {"rpc_shared_memory": False},
    "grpc": {"rpc_shared_memory": False, "rpc_stream": False},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [4, 50_000, 3_000_000])
def test_every_size_travels_by_every_way(live: Any, way: str, size: int) -> None:
    flags.set_flags(WAYS[way])
    server = live(2, size)
    seen = side_by_side({f"t{i}": partial(trained, server, i, size) for i in range(2)})
    assert set(seen["t0"].tolist()) == set(seen["t1"].tolist()) == {-3.0}


@pytest.mark.parametrize("way", ["shared memory", "streams"])
def test_a_way_that_breaks_is_opened_again_and_every_push_counts_once(live: Any, way: str) -> None:
    flags.set_flags(WAYS[way])
    server = live(1, 50_000)
    used = connected(server, 0)
    for _ in range(6):
        used.servers.push(server.endpoint, {"w@GRAD": np.ones(50_000, np.float32)})
        descriptor = used.servers.server(server.endpoint).fileno()
        assert descriptor >= 0
        with socket.socket(fileno=os.dup(descriptor)) as same:
            same.shutdown(socket.SHUT_RDWR)
        used.servers.barrier([server.endpoint], strict=True)
        found = used.servers.exchange({server.endpoint: ("w",)})
    used.close()
    assert set(found[server.endpoint]["w"].tolist()) == {-6.0}


def test_many_waiting_trainers_starve_no_call(live: Any) -> None:
    server = live(48)
    ends: list[str] = []

    def wait(trainer: int) -> None:
        try:
            trained(server, trainer, 4, 1)
        except Aborted as error:
            ends.append(error.message)

    waiting = [threading.Thread(target=wait, args=(i,)) for i in range(47)]
    for thread in waiting:
        thread.start()
    wire = GrpcEndpoint(server.endpoint, 5.0)
    wire.call(encode(Hello(trainer=47, incarnation=1)), 5.0)
    beat = encode(Heartbeat(trainer=47, incarnation=1, step=0))
    for _ in range(50):
        assert type(decode([wire.call(beat, 5.0)]).message).__name__ == "Accepted"
    server.stop("enough")
    for thread in waiting:
        thread.join(20)
    assert len(ends) == 47
    wire.close()


def test_a_port_in_use_is_a_config_error(live: Any) -> None:
    taken = live().endpoint

    async def again() -> None:
        async with listening(taken, {}, 5.0):
            pass

    with pytest.raises(ConfigError, match=f"cannot listen on {taken}"):
        asyncio.run(again())


def test_nobody_there_is_unreachable_or_late() -> None:
    wire = GrpcEndpoint("127.0.0.1:9", 5.0)
    with pytest.raises(Unreachable):
        wire.call(b"", 2.0)
    with pytest.raises(DeadlineExceeded):
        wire.call(b"", 0.3, wait=True)
    exchange = wire.exchange(2.0)
    exchange.write([b"x"])
    exchange.end()
    with pytest.raises(Unreachable):
        exchange.receive(Decoder())
    wire.close()


def test_a_cancelled_exchange_wakes_its_reader(live: Any) -> None:
    wire = GrpcEndpoint(live().endpoint, 5.0)
    exchange = wire.exchange(10.0)
    threading.Timer(0.2, exchange.cancel).start()
    with pytest.raises(Unreachable):
        exchange.receive(Decoder())
    wire.close()
