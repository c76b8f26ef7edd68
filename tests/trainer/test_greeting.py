"""Greeting a server that does not answer, or belongs to another job: how long it takes, what is
printed meanwhile, and the error.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bireme as fluid
from bireme.errors import BiremeError, ConfigError, PeerLost
from bireme.job_token import FILE, TOKEN
from bireme.net import sockets
from bireme.net.carriers import Unreachable
from bireme.net.error_replies import raised
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.heartbeat import Times
from bireme.trainer import session
from bireme.trainer.job_state import JobState
from bireme.trainer.registry import Registry, trainers

from ..support.carriers import CARRIERS
from ..support.cluster import cluster, descending, tiny_server
from ..support.job import Job


class Absent:
    """A server that refuses every connection at once."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def call(self, request: bytes, timeout: float, wait: bool) -> bytes:
        raise Unreachable(f"server {self.endpoint}: unavailable", peer=self.endpoint)


def greeted(endpoint: Any, join: float) -> BiremeError:
    job = JobState(0, 1, Times(silence=1.0, join=join, deadline=1.0), lambda error: None)
    with pytest.raises(BiremeError) as caught:
        session.greet(endpoint, job)
    return caught.value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by a tenth of a second at each look."""
    ticks = itertools.count()
    passing = SimpleNamespace(monotonic=lambda: next(ticks) / 10, sleep=lambda seconds: None)
    monkeypatch.setattr(session, "time", passing)


@pytest.mark.usefixtures("clock")
def test_waiting_is_said_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    error = greeted(Absent("127.0.0.1:6170"), join=19.0)
    assert isinstance(error, PeerLost)
    assert "did not answer within 19 s" in str(error)
    assert caplog.messages == [
        f"trainer 0 waits for server 127.0.0.1:6170: {seconds} s" for seconds in (5, 10, 15)
    ]


@pytest.mark.usefixtures("clock")
def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "is_known", lambda host: host != "server-7.invalid")
    error = greeted(Absent("server-7.invalid:6170"), join=1.0)
    assert "this machine does not know the host server-7.invalid" in str(error)


def test_a_token_that_cannot_be_read_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setenv(FILE, str(tmp_path / "absent"))
    server = GrpcEndpoint("127.0.0.1:1", 1.0)
    error = greeted(server, join=60.0)
    server.close()
    assert isinstance(error, ConfigError)
    assert "cannot read the job token" in str(error)


@pytest.mark.parametrize("carrier", ["", *CARRIERS])
def test_another_number_of_trainers_is_refused_on_both_sides_at_once(carrier: str) -> None:
    with cluster(carrier=carrier) as made:
        server = made.serve(*(given := tiny_server(trainers=2)), descending(*given))
        trainer = made.trainer(0)
        trainer.job.trainers = 3
        with pytest.raises(ConfigError) as caught:
            trainer.servers.greet(["s0"])
        assert server.service.failure is not None
        failed = raised(server.service.failure)
    for error in (caught.value, failed):
        assert isinstance(error, ConfigError)
        assert "trainer 0 was started for 3 trainers, server s0 for 2" in str(error)
        assert "PADDLE_TRAINERS_NUM" in str(error)


def test_a_trainer_that_is_made_before_any_program_runs_takes_its_size_from_the_first() -> None:
    registry = Registry(dial=lambda endpoint: pytest.fail("nobody is called"))
    program = fluid.Program()
    program._trainers, program._endpoints = 3, ["a:1", "b:1"]
    try:
        registry.of(0)
        job = registry.of(0, program).job
        assert (job.trainers, job.endpoints) == (3, ["a:1", "b:1"])
    finally:
        registry.find(0).abort("the test is over")


def plain_model() -> tuple[Any, Any, Any]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [-1, 4], "float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, 3))
        fluid.optimizer.SGD(0.1).minimize(loss)
    return main, startup, loss


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"trainers": 3}, "was started for 3 trainers, server 127.0.0.1:7000 for 2"),
        ({"trainers": 1}, "was started for 1 trainer, server 127.0.0.1:7000 for 2"),
        ({"servers": 3}, "for number 0 of 3; it was started as number 0 of 2"),
        ({"servers": 1}, "for number 0 of 1; it was started as number 0 of 2"),
    ],
)
def test_a_program_for_another_job_is_refused_at_once(
    more: dict[str, int], expected: str, sync: bool
) -> None:
    job = Job(plain_model, sync=sync)
    other = replace(job, **more)
    with job.servers_up():
        trainer, startup = other.trainer(0)
        with pytest.raises(ConfigError) as caught:
            trainer.executor.run(startup, scope=trainer.scope)
        trainers.close(0, caught.value)
    assert expected in str(caught.value)
    assert "give every process the same" in str(caught.value)


def test_servers_in_another_order_are_refused_at_once() -> None:
    job = Job(plain_model)
    with job.servers_up():
        trainer, startup = job.trainer(0)
        startup._endpoints.reverse()
        with pytest.raises(ConfigError) as caught:
            trainer.executor.run(startup, scope=trainer.scope)
        trainers.close(0, caught.value)
    assert "as number" in str(caught.value)
    assert "in the same order" in str(caught.value)
