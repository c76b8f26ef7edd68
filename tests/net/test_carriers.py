"""One contract for every carrier: frames arrive whole and in order, every end is found out, and
nobody is answered who does not belong to the job.
"""

import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from bireme.errors import DeadlineExceeded
from bireme.net import messages as m
from bireme.net import socket_server, sockets
from bireme.net.carriers import Carrier, Exchange, Unreachable
from bireme.net.frames import Decoder, Received, frame
from bireme.net.socket_client import SocketCarrier, connect
from tests.support.carriers import CARRIERS, KEY, LIFE, Mirror, Running, running
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.wire
PUSH = m.Push(trainer=1, incarnation=2, sequence=2, step=4)


def pull(*names: str) -> m.Pull:
    return m.Pull(trainer=1, incarnation=2, sequence=3, step=4, names=names, answer=True)


def asked(carrier: Carrier, *frames: list[bytes], timeout: float = 20.0) -> Received:
    return sent(carrier, *frames, timeout=timeout).receive(Decoder())


def sent(carrier: Carrier, *frames: list[bytes], timeout: float = 20.0) -> Exchange:
    exchange = carrier.exchange(timeout)
    for parts in frames:
        exchange.write(parts)
    exchange.end()
    return exchange


@pytest.fixture(scope="module")
def mirror() -> Mirror:
    return Mirror()


@pytest.fixture(scope="module")
def server(mirror: Mirror) -> Iterator[Running]:
    with running(mirror) as made:
        yield made


@pytest.fixture(params=CARRIERS)
def carrier(server: Running, request: pytest.FixtureRequest) -> Iterator[Carrier]:
    made = server.open(request.param)
    yield made
    made.close()


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 3_000_000])
def test_values_come_back_whole_exchange_after_exchange(carrier: Carrier, size: int) -> None:
    values = {
        "w": np.random.RandomState(1).rand(size).astype(np.float32),
        "b": np.arange(5, dtype=np.int64),
    }
    for _ in range(3):
        received = asked(carrier, frame(PUSH, values), frame(pull()))
        assert received.message == m.Values(version=5)
        assert all(np.array_equal(received.values[name], values[name]) for name in values)


def test_large_frames_leave_while_the_next_is_made_and_in_order(carrier: Carrier) -> None:
    exchange = carrier.exchange(20.0)
    for i in range(20):
        exchange.write(frame(PUSH, {"w": np.full(500_000, i, np.float32)}))
    exchange.write(frame(pull()))
    exchange.end()
    assert set(exchange.receive(Decoder()).values["w"].tolist()) == {19}


def test_a_late_answer_is_a_deadline_and_the_exchange_is_over(carrier: Carrier) -> None:
    exchange = sent(carrier, frame(pull("slow")), timeout=0.3)
    with pytest.raises(DeadlineExceeded, match="did not answer in time"):
        exchange.receive(Decoder())
    with pytest.raises((Unreachable, DeadlineExceeded)):
        exchange.receive(Decoder())


def test_cancelling_wakes_the_reader_and_ends_the_call_at_the_server(
    carrier: Carrier, mirror: Mirror
) -> None:
    mirror.cancelled.clear()
    exchange = sent(carrier, frame(pull("slow")))
    threading.Timer(0.2, exchange.cancel).start()
    with pytest.raises(Unreachable):
        exchange.receive(Decoder())
    assert mirror.cancelled.wait(PATIENCE)


@pytest.mark.parametrize("noise", [b"x" * 100, b"BR\x03\x00" + b"\xff" * 12])
def test_noise_is_refused(carrier: Carrier, noise: bytes) -> None:
    assert isinstance(asked(carrier, [noise]).message, m.Refused)


def test_a_name_that_is_not_utf8_is_refused(carrier: Carrier) -> None:
    """The checksum is right; the text inside is not."""
    import zlib

    good = frame(pull("name"))[0]
    body = bytes(good[16:]).replace(b"name", b"n\xff\xfee")
    bad = bytes(good[:12]) + zlib.crc32(body).to_bytes(4, "little") + body
    answer = asked(carrier, [bad]).message
    assert isinstance(answer, m.Refused)


def test_a_fault_of_the_server_is_an_answer_and_no_silence(carrier: Carrier) -> None:
    try:
        answer = asked(carrier, frame(pull("broken")), timeout=20.0).message
    except Unreachable:  # gRPC ends such a call with a status
        return
    assert isinstance(answer, m.Refused)


# -- sockets alone -----------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_who_has_no_key_is_not_served(server: Running, kind: str) -> None:
    with pytest.raises(AssertionError):
        server.open(kind, key=b"?" * 16)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_another_life_of_the_server_is_noticed(server: Running, kind: str) -> None:
    with pytest.raises(AssertionError):
        server.open(kind, life=LIFE + 1)


def test_a_unix_peer_of_another_user_is_not_served(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "is_trusted", lambda connected: False)
    with pytest.raises(AssertionError):
        server.open("unix")


def test_a_connection_that_says_nothing_is_ended(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 0.2)
    (port,) = [o.port for o in server.offers if isinstance(o, m.TcpPort)]
    with socket.create_connection(("127.0.0.1", port), 5) as silent:
        assert silent.recv(1) == b""


def test_a_port_where_nobody_answers_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        offer = m.TcpPort(silent.getsockname()[1])
        assert connect([offer], "127.0.0.1:1", LIFE, KEY) is None


def test_a_server_that_has_gone_is_unreachable() -> None:
    with running(Mirror()) as server:
        carrier = server.open("unix")
        asked(carrier, frame(pull()))
    with pytest.raises(Unreachable):
        asked(carrier, frame(pull()))
    carrier.close()


def test_a_server_accepts_again_after_descriptors_have_run_out(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = [OSError(24, "Too many open files")] * 2

    class Exhausted:
        """A listening socket whose first accepts fail."""

        def __init__(self, real: socket.socket) -> None:
            self._real = real
            self.fileno, self.close = real.fileno, real.close

        def accept(self) -> object:
            if refusals:
                raise refusals.pop()
            return self._real.accept()

    monkeypatch.setattr(sockets, "RETRY_SECONDS", 0.05)
    listen = socket_server._Listener.add

    def add(self: socket_server._Listener, bound: socket.socket) -> None:
        bound.listen(1)
        bound.setblocking(False)
        exhausted = Exhausted(bound)
        self._listening.append(exhausted)
        self._loop.add_reader(bound, self._accept, exhausted)

    assert listen is not add
    monkeypatch.setattr(socket_server._Listener, "add", add)
    with running(Mirror()) as made:
        carrier = made.open("unix")
        assert asked(carrier, frame(pull())).message == m.Values(version=5)
        carrier.close()
    assert "cannot accept a connection: Too many open files" in caplog.text


def test_the_greeting_is_the_only_thing_read_from_a_stranger() -> None:
    assert sockets.GREETING < 64
    assert not sockets.verify(sockets.greeting(b"?" * 16), KEY)
    assert sockets.verify(sockets.greeting(KEY), KEY)


def test_a_peer_that_does_not_wait_for_its_answer_is_read_no_further(server: Running) -> None:
    carrier = server.open("tcp")
    assert isinstance(carrier, SocketCarrier)
    exchange = carrier.exchange(10.0)
    for _ in range(50):  # each frame asks for an answer; none is read
        exchange.write(frame(PUSH, {"w": np.zeros(20_000, np.float32)}))
        exchange.write(frame(pull()))
    exchange.end()
    for _ in range(50):
        assert exchange.receive(Decoder()).message == m.Values(version=5)
    carrier.close()
