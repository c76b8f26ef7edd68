"""Whoever has not the job's token changes nothing and learns nothing, on every way in."""

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from bireme import flags
from bireme.collective import membership
from bireme.collective.register import OwnRegister, RemoteRegister
from bireme.errors import ConfigError, ProtocolError
from bireme.job_token import FILE, TOKEN, ensure_token, is_loopback, job_token
from bireme.monitoring.admin_server import Admin
from bireme.net import messages as m
from bireme.net import sockets
from bireme.net.fluid.codec import Variable, encode_variable
from bireme.net.frames import Decoder, decode, encode, frame
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening
from tests.support.live_server import LiveServer, Recorder

pytestmark = pytest.mark.wire
OURS, THEIRS = "0123456789abcdef" * 2, "fedcba9876543210" * 2
SECONDS = 5.0


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setenv(TOKEN, OURS)
    made = LiveServer()
    yield made
    made.close()


def as_stranger(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, shown) if shown else monkeypatch.delenv(TOKEN)


# -- what a stranger may try -------------------------------------------------------------------
HERE = {"trainer": 0, "incarnation": 1}
COUNTED = {**HERE, "sequence": 1, "step": 0, "answer": True}
CALLS = {
    "hello": m.Hello(**HERE),
    "heartbeat": m.Heartbeat(**HERE, step=0),
    "complete": m.Complete(**HERE),
    "abort": m.Abort(**HERE, step=0, cause="a stranger's wish"),
}
FRAMES = {
    "push": frame(m.Push(**COUNTED), {"w@GRAD": np.ones(4, np.float32)}),
    "pull": frame(m.Pull(**COUNTED, names=("w",), gated=False)),
    "save": frame(m.Save(**COUNTED, folder="/tmp/elsewhere")),
}
FLUID = {
    "SendVariable": Variable(name="COMPLETE@RECV"),
    "GetVariable": Variable(name="w", out_name="w"),
    "GetVariableNoBarrier": Variable(name="w@WITHOUT_BARRIER@RECV", out_name="w"),
    "PrefetchVariable": Variable(name="w", value=np.zeros((1, 1), np.int64)),
}


def calls(live: LiveServer, message: m.Message) -> None:
    wire = GrpcEndpoint(live.endpoint, SECONDS)
    with contextlib.closing(wire), pytest.raises(ProtocolError, match="refused this process"):
        wire.call(encode(message), SECONDS)


def exchanges(live: LiveServer, parts: Any) -> None:
    wire = GrpcEndpoint(live.endpoint, SECONDS)
    exchange = wire.exchange(SECONDS)
    exchange.write(parts)
    exchange.end()
    with contextlib.closing(wire), pytest.raises(ProtocolError, match="refused this process"):
        exchange.receive(Decoder())


def asks_fluid(live: LiveServer, method: str) -> None:
    with grpc.insecure_channel(live.endpoint) as channel:
        ask = channel.unary_unary(f"/sendrecv.SendRecvService/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            ask(encode_variable(FLUID[method]), timeout=SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def greets(live: LiveServer, kind: type) -> None:
    """A key of its own, and no token to be told the right one."""
    (offer,) = [one for one in live.service.carriers if isinstance(one, kind)]
    if isinstance(offer, m.UnixSocket):
        made = sockets.connect_unix(offer.name, SECONDS)
    else:
        made = sockets.connect_tcp(f"127.0.0.1:{offer.port}", SECONDS)
    with made:
        made.sendall(sockets.greeting(b"?" * sockets.KEY))
        assert sockets.read_exactly(made, 2, SECONDS) == b"BR"  # a refusal, and no reply
        while made.recv(4096):
            pass


def reports(live: LiveServer) -> None:
    client = RemoteRegister(f"127.0.0.1:{live.register.port}", SECONDS)
    with contextlib.closing(client), pytest.raises(ProtocolError, match="refused this process"):
        client.ask(membership.Report(1, 0, "a stranger's wish"), SECONDS)


WAYS: dict[str, Callable[[LiveServer], None]] = {
    **{f"call {name}": partial(calls, message=said) for name, said in CALLS.items()},
    **{f"exchange {name}": partial(exchanges, parts=parts) for name, parts in FRAMES.items()},
    **{f"Fluid's {method}": partial(asks_fluid, method=method) for method in FLUID},
    "Unix socket": partial(greets, kind=m.UnixSocket),
    "TCP port": partial(greets, kind=m.TcpPort),
    "register": reports,
}


@pytest.mark.parametrize("shown", ["", THEIRS], ids=["no token", "another token"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stranger_changes_nothing_and_learns_nothing(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, way: str, shown: str
) -> None:
    as_stranger(shown, monkeypatch)
    WAYS[way](live)
    assert live.said == []
    assert live.service.metrics.received == live.service.metrics.sent == 0
    assert live.updates.value("w").tolist() == [0.0] * 4
    monkeypatch.setenv(TOKEN, OURS)
    with contextlib.closing(GrpcEndpoint(live.endpoint, SECONDS)) as wire:
        welcome = decode([wire.call(encode(CALLS["hello"]), SECONDS)]).message
    assert isinstance(welcome, m.Welcome)


@pytest.mark.parametrize("shown", ["", THEIRS], ids=["no token", "another token"])
def test_the_admin_port_off_loopback_asks_for_the_token(
    monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    monkeypatch.setenv(TOKEN, OURS)
    admin = Admin("0.0.0.0", 0)
    port = int(admin.endpoint.rpartition(":")[2])
    try:
        for path in ("/", "/healthz", "/metrics", "/status", "/stacks", "/none"):
            code, text = read_page(port, path, shown)
            assert (code, "token" in text) == (401, True)
        assert read_page(port, "/healthz", OURS) == (200, "ok\n")
        assert read_page(port, "/healthz", OURS, **{"X-Long": "x" * 10_000})[0] == 431
    finally:
        admin.close()


def read_page(port: int, path: str, token: str, **headers: str) -> tuple[int, str]:
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={**shown, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_refused_trainer_reads_who_why_and_what_to_do(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_stranger(THEIRS, monkeypatch)
    wire = GrpcEndpoint(live.endpoint, SECONDS)
    with contextlib.closing(wire), pytest.raises(ProtocolError) as caught:
        wire.call(encode(CALLS["hello"]), SECONDS)
    text = str(caught.value)
    assert live.endpoint in text
    assert "it shows the token of another job" in text
    assert TOKEN in text
    assert OURS not in text
    assert THEIRS not in text


def test_a_stranger_s_large_message_is_not_read(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be answered after its end, if it were."""
    as_stranger("", monkeypatch)
    ended = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"x" * (1 << 20)
        ended.wait(SECONDS)

    with grpc.insecure_channel(live.endpoint) as channel:
        call = channel.stream_unary("/bireme.Server/Call").future(pieces(), timeout=SECONDS)
        code = call.code()
        ended.set()
    assert code is grpc.StatusCode.UNAUTHENTICATED


# -- without a token ---------------------------------------------------------------------------
def test_off_loopback_nothing_listens_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.delenv(FILE, raising=False)

    async def serve() -> None:
        async with listening("0.0.0.0:0", {}, SECONDS):
            pass

    refused: list[Callable[[], Any]] = [
        lambda: asyncio.run(serve()),
        lambda: OwnRegister("0.0.0.0:0", Recorder(size=1, terms="", silence=1, token=""), SECONDS),
        lambda: sockets.bind("0.0.0.0:0"),
        lambda: Admin("0.0.0.0", 0),
    ]
    for listen in refused:
        with pytest.raises(ConfigError, match=r"any host could take part"):
            listen()
    flags.set_flags({"insecure": True})
    try:
        for listen in refused:
            made = listen()
            if made is not None:
                made.close()
    finally:
        flags.set_flags({"insecure": False})


def test_loopback_needs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    register = membership.Register(size=2, terms="t", silence=60, token="secret")
    server = OwnRegister("127.0.0.1:0", register, SECONDS)
    client = RemoteRegister(f"127.0.0.1:{server.port}", SECONDS)
    assert client.ask(membership.Beat(1), SECONDS).token == "secret"
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("", False), ("10.0.0.1", False),
     ("no.such.host.invalid", False)],
)  # fmt: skip
def test_which_addresses_are_loopback(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


# -- the token itself --------------------------------------------------------------------------
def test_the_token_is_read_from_a_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setenv(FILE, str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="cannot read the job token: No such file"):
        job_token()
    (tmp_path / "token").write_text(f"{OURS}\n")
    assert job_token() == OURS


@pytest.mark.parametrize("wrong", ["short", "x" * 2000, "tab\there and long enough"])
def test_a_wrong_token_is_named_without_being_told(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv(TOKEN, wrong)
    with pytest.raises(ConfigError, match="16 to 1024 printable") as caught:
        job_token()
    assert wrong not in str(caught.value)


def test_a_launcher_makes_a_token_unless_there_is_one() -> None:
    made: dict[str, str] = {}
    ensure_token(made)
    assert len(made[TOKEN]) == 64
    for given in ({TOKEN: OURS}, {FILE: "/run/secrets/job"}):
        before = dict(given)
        ensure_token(given)
        assert given == before
