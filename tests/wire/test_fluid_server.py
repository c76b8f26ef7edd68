"""Our trainers where only Fluid's wire is spoken: this project's servers with their native service
left out.
"""

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from bireme.errors import DeadlineExceeded, InvalidArgument, PeerLost, UnsupportedError
from bireme.net import messages as m
from bireme.net.fluid import client as fluid_client
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening
from bireme.net.heartbeat import Times
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.fluid import FluidService
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates
from bireme.trainer.allgather import share
from bireme.trainer.fluid_server import FluidServer
from bireme.trainer.trainer import Trainer
from tests.support.cluster import descending, side_by_side, tiny_server
from tests.support.server_thread import ServerThread

pytestmark = pytest.mark.wire
ASYNC = 2


class Old(ServerThread):
    """A server that speaks Fluid's wire only; calls named in `refuse` fail so many times."""

    def __init__(self, trainers: int = 1, mode: int = 0, params: tuple[str, ...] = ("w",)) -> None:
        program, scope = tiny_server("127.0.0.1:0", trainers, mode, params)
        (op,) = program.global_block().ops
        settings = read_settings(op, program)
        updates = Updates(program, settings, scope, descending(program, scope))
        self.service = Server(Core(settings, Limits(silence=5, quiet=20)), updates)
        self.fluid = FluidService(self.service, updates, trainers)
        self.calls: list[str] = []
        self.refuse: dict[str, int] = {}
        self.most = self.now = 0  # calls under way
        self.begin()

    async def _serve(self) -> None:
        handlers = {path: self._handler(path, m) for path, m in self.fluid.methods().items()}
        async with listening("127.0.0.1:0", handlers, 5.0) as port:
            self._serving(port)
            self.failure = await self.service.run()

    def _handler(self, path: str, method: Any) -> Any:
        name = path.rpartition("/")[2]

        async def carry(request: bytes, context: Any) -> bytes:
            self.calls.append(name)
            if self.refuse.get(name, 0) > 0:
                self.refuse[name] -= 1
                await context.abort(grpc.StatusCode.UNAVAILABLE, "for the test")
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                answer: bytes = await method(request, context.peer())
            finally:
                self.now -= 1
            return answer

        return grpc.unary_unary_rpc_method_handler(carry)


@pytest.fixture
def old() -> Iterator[Callable[..., Old]]:
    made: list[Old] = []

    def make(*given: Any) -> Old:
        made.append(Old(*given))
        return made[-1]

    yield make
    for server in made:
        server.close()


def connected(trainer: int = 0, deadline: float = 10.0) -> Trainer:
    times = Times(beat=0.5, silence=5.0, deadline=deadline, join=10.0)
    return Trainer(trainer, lambda endpoint: GrpcEndpoint(endpoint, 5.0), times)


def trained(server: Old, trainer: int, grad: str, steps: int = 4) -> Any:
    used = connected(trainer)
    at = server.endpoint
    used.servers.exchange({at: ("w",)})
    found: Any = {}
    for _ in range(steps):
        used.servers.push(at, {grad: np.full(4, trainer + 1, np.float32)})
        used.servers.barrier([at], strict=True)
        found = used.servers.exchange({at: ("w",)})
    assert isinstance(used.servers.server(at), FluidServer)
    used.close()
    return found[at]["w"].tolist()


def test_rounds_of_two_trainers_and_an_orderly_end(old: Callable[..., Old]) -> None:
    server = old(2)
    tasks = {f"t{i}": lambda i=i: trained(server, i, f"w@GRAD.trainer_{i}") for i in range(2)}
    found = side_by_side(tasks)
    assert found["t0"] == found["t1"] == [-6.0] * 4  # four rounds of the mean of 1 and 2
    server.wait()
    assert server.failure is None


def test_a_lone_trainer_adds_the_suffix_that_rounds_need(old: Callable[..., Old]) -> None:
    assert trained(old(1), 0, "w@GRAD") == [-4.0] * 4


def test_without_rounds_every_push_counts_and_no_barrier_is_said(old: Callable[..., Old]) -> None:
    server = old(1, ASYNC)
    used = connected()
    at = server.endpoint
    used.servers.exchange({at: ("w",)})
    for step in range(3):
        used.servers.push(at, {"w@GRAD": np.ones(4, np.float32)})
        found = used.servers.exchange({at: ("w",)})[at]["w"]
        assert found.tolist() == [-1.0 - step] * 4
    used.close()
    assert server.calls.count("SendVariable") == 4  # three gradients and the end


def test_lost_calls_are_repeated_as_often_as_the_flag_says(old: Callable[..., Old]) -> None:
    server = old(1)
    server.refuse = {"GetVariable": 2}
    assert trained(server, 0, "w@GRAD", steps=1) == [-1.0] * 4


def test_a_server_that_stays_away_is_lost_and_named(old: Callable[..., Old]) -> None:
    server = old(1)
    server.refuse = {"GetVariable": 99}
    with pytest.raises(PeerLost, match=f"{server.endpoint} is lost after 4 attempts"):
        connected().servers.exchange({server.endpoint: ("w",)})


def test_a_wait_ends_at_the_deadline(old: Callable[..., Old]) -> None:
    server = old(2)
    used = connected(deadline=1.0)
    at = server.endpoint
    used.servers.exchange({at: ("w",)})
    used.servers.push(at, {"w@GRAD.trainer_0": np.ones(4, np.float32)})
    used.servers.barrier([at], strict=True)
    with pytest.raises(DeadlineExceeded, match="GetVariable in time"):
        used.servers.exchange({at: ("w",)})


def test_calls_under_way_are_bounded_by_the_flags(old: Callable[..., Old]) -> None:
    names = tuple(f"p{i}" for i in range(30))
    server = old(1, ASYNC, names)
    used = connected()
    at = server.endpoint
    used.servers.exchange({at: names})
    assert server.most <= 12  # FLAGS_rpc_get_thread_num
    for name in names:
        used.servers.push(at, {f"{name}@GRAD": np.ones(4, np.float32)})
    found = used.servers.exchange({at: names})[at]
    assert server.most <= 12
    assert all(found[name].tolist() == [-1.0] * 4 for name in names)
    used.close()


def test_what_this_wire_cannot_carry_is_refused_before_it_leaves(
    old: Callable[..., Old], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fluid_client, "LARGEST", 1000)
    server = old(1)
    used = connected()
    with pytest.raises(InvalidArgument, match="too large for Fluid's wire"):
        used.servers.push(server.endpoint, {"w@GRAD.trainer_0": np.ones(1000, np.float32)})


def test_words_that_fluid_does_not_know_are_refused_not_dropped(old: Callable[..., Old]) -> None:
    peer = connected().servers.server(old(1).endpoint)
    assert isinstance(
        peer.say(m.Abort(trainer=0, incarnation=1, step=0, cause="x"), 1.0), m.Accepted
    )
    with pytest.raises(UnsupportedError, match="knows no Hello"):
        peer.say(m.Hello(trainer=0, incarnation=1), 1.0)


def test_values_of_all_trainers_have_no_way_through_fluid(old: Callable[..., Old]) -> None:
    server = old(1)
    used = connected()
    used.servers.server(server.endpoint)
    with pytest.raises(UnsupportedError, match="Fluid's"):
        share(used.servers, {"x": np.ones(2, np.float32)})
