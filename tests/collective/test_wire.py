"""The grpc engine keeps the contract, through shared memory and through sockets.

The ranks are threads here, but they meet as processes do: over gRPC, links and memory maps.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from bireme.collective import Group, Settings, World
from bireme.collective import membership as m
from bireme.collective.register import OwnRegister, RemoteRegister
from bireme.errors import ConfigError, DeadlineExceeded, PeerLost

from .contract import GroupContract, on_every_rank

pytestmark = pytest.mark.wire
FAST = Settings(heartbeat=5, timeout=20)


@contextmanager
def worlds(size: int, free_port, settings: Settings = FAST) -> Iterator[list[World]]:
    coordinator = f"127.0.0.1:{free_port()}"
    made: list[World | None] = [None] * size

    def join(rank: int) -> None:
        made[rank] = World(rank, size, coordinator, "127.0.0.1:0", settings)

    in_threads(join, size)
    joined = [world for world in made if world]
    yield joined
    in_threads(lambda rank: joined[rank].close(), len(joined))


def in_threads(work, size: int) -> None:
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


class OverWorlds(GroupContract):
    payload = "auto"

    @pytest.fixture(autouse=True)
    def _ports(self, free_port):
        self.free_port = free_port

    @contextmanager
    def groups(self, size: int) -> Iterator[Sequence[Group]]:
        settings = Settings(heartbeat=5, timeout=20, payload=self.payload)
        with worlds(size, self.free_port, settings) as all_worlds:
            opened = on_every_rank(all_worlds, lambda world: world.group())
            yield opened


class TestSharedMemory(OverWorlds):
    pass


class TestSockets(OverWorlds):
    payload = "sockets"


def test_the_endpoint_in_use_is_one_clear_error(free_port):
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(ConfigError, match="Address already in use"):
            World(0, 2, f"127.0.0.1:{port}", "127.0.0.1:0", FAST)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            World(1, 2, "127.0.0.1:1", f"127.0.0.1:{port}", FAST)


def test_a_rank_that_never_starts_is_named(free_port):
    with pytest.raises(DeadlineExceeded, match="rank 1, rank 2 of 3 did not join"):
        World(0, 3, f"127.0.0.1:{free_port()}", "127.0.0.1:0", Settings(timeout=0.2))
    with pytest.raises(DeadlineExceeded, match="rank 0 of 3 did not join"):
        World(1, 3, f"127.0.0.1:{free_port()}", "127.0.0.1:0", Settings(timeout=0.2))


def test_ranks_of_different_settings_do_not_start(free_port):
    coordinator = f"127.0.0.1:{free_port()}"
    settings = [Settings(timeout=0.5, terms=f"{rings} communicators") for rings in (1, 2)]

    def join(rank: int) -> None:
        World(rank, 2, coordinator, "127.0.0.1:0", settings[rank])

    for error in on_every_rank([0, 1], join):
        assert isinstance(error, ConfigError)
        assert "1 communicators" in str(error)
        assert "2 communicators" in str(error)


def test_ranks_of_jobs_of_different_sizes_do_not_start(free_port, caplog):
    coordinator = f"127.0.0.1:{free_port()}"

    def join(rank: int) -> None:
        World(rank, 2 + rank, coordinator, "127.0.0.1:0", Settings(timeout=0.5))

    for error in on_every_rank([0, 1], join):
        assert isinstance(error, ConfigError)
        assert "rank 1 of 3 asks to join a job of 2 ranks" in str(error)
        assert "PADDLE_TRAINER_ENDPOINTS" in str(error)
    assert caplog.messages == ["rank 0: rank 1 of 3 asks to join a job of 2 ranks"]


def test_a_register_that_is_out_of_reach_for_a_moment_costs_nothing(free_port, monkeypatch):
    """A proxy before rank 0 is started again: the ranks themselves are connected."""
    ask, failures = RemoteRegister.ask, iter(range(3))

    def refused(register: RemoteRegister, request: m.Request, timeout: float) -> m.State:
        if next(failures, None) is not None:
            raise PeerLost("rank 0 does not answer", peer="rank 0")
        return ask(register, request, timeout)

    with worlds(2, free_port) as (rank0, rank1):
        monkeypatch.setattr(RemoteRegister, "ask", refused)
        rank1.post("key", b"value")
        assert rank0.fetch("key") == b"value"
        assert next(failures, None) is None
        rank1.check()


def test_who_closes_a_failed_job_tells_its_user_before_all_others_have_heard(
    free_port, monkeypatch
):
    heard, left = threading.Event(), []
    settle = OwnRegister.settle

    def settled(register: OwnRegister, timeout: float) -> None:
        left.append(heard.wait(20))
        settle(register, timeout)

    with worlds(2, free_port) as (rank0, _):
        rank0.fail(ValueError("a bad batch"))
        monkeypatch.setattr(OwnRegister, "settle", settled)
        rank0.close()
        assert left == []
        (leaving,) = [t for t in threading.enumerate() if t.name == "bireme-leave"]
        heard.set()
        leaving.join(20)
        assert left == [True]


def test_values_are_posted_and_fetched(free_port):
    def work(world: World) -> bytes:
        if world.rank == 0:
            world.post("id", b"\0binary")
        return world.fetch("id")

    with worlds(3, free_port) as all_worlds:
        assert on_every_rank(all_worlds, work) == [b"\0binary"] * 3


def test_a_failed_rank_tells_the_others_why(free_port):
    def work(world: World) -> None:
        group = world.group()
        if world.rank == 1:
            world.fail(ValueError("loss is not a number"))
            group.close()
        group.all_reduce(np.zeros(3))

    with worlds(3, free_port) as all_worlds:
        errors = on_every_rank(all_worlds, work)
    for error in (errors[0], errors[2]):
        assert isinstance(error, PeerLost)
        assert error.peer == "rank 1"
        assert "loss is not a number" in str(error)


def test_a_rank_that_is_alive_but_absent_is_named(free_port):
    def work(world: World) -> None:
        group = world.group()
        if world.rank == 0:
            group.all_reduce(np.zeros(3))

    with worlds(2, free_port, Settings(timeout=0.3)) as all_worlds:
        error, _ = on_every_rank(all_worlds, work)
    assert isinstance(error, DeadlineExceeded)
    assert error.peer == "rank 1"
    assert "though alive" in str(error)
