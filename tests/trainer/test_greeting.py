"""Greeting a server that does not answer: how long, what is printed meanwhile, and the error."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bireme.errors import BiremeError, ConfigError, PeerLost
from bireme.job_token import FILE, TOKEN
from bireme.net import sockets
from bireme.net.carriers import Unreachable
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.heartbeat import Times
from bireme.trainer import session
from bireme.trainer.job_state import JobState


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
def test_waiting_is_said_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    error = greeted(Absent("127.0.0.1:6170"), join=19.0)
    assert isinstance(error, PeerLost)
    assert "did not answer within 19 s" in str(error)
    assert capsys.readouterr().err.splitlines() == [
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
