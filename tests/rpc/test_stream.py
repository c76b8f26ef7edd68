"""Frames over a TCP connection: the same values, strangers noticed, and every end found out."""

import asyncio
import queue
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bireme.errors import BiremeError, DeadlineExceeded, FormatError
from bireme.rpc import messages as m
from bireme.rpc.codec import Decoder, Received, encode, framed, joined, parts_of
from bireme.rpc.stream import Stream, accepting
from bireme.rpc.wire import Unreachable

LIFE = 77
PULL = m.Pull(trainer=1, incarnation=2, sequence=3, step=4, names=("w",), answer=True)
PUSH = m.Push(trainer=1, incarnation=2, sequence=2, step=4)


class Talk:
    """Gives the last values back when asked; `slow` waits first."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self._values: dict[str, np.ndarray] = {}

    async def hear(self, received: Received) -> list[bytes] | None:
        if isinstance(received.message, m.Push):
            self._values = received.values
            return None
        if getattr(received.message, "names", ()) == ("slow",):
            await asyncio.sleep(30)
        return encode(m.Values(version=5), self._values)


class Giver:
    async def call(self, request: bytes) -> bytes:
        return request

    async def exchange(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            yield piece

    def talk(self, direct: bool) -> Talk:
        return Talk()


@contextmanager
def house() -> Iterator[int]:
    """A server that takes streams, on an event loop of its own; gives its port."""
    ports: queue.SimpleQueue[str] = queue.SimpleQueue()
    leave = threading.Event()

    async def run() -> None:
        async with accepting(Giver(), "127.0.0.1:1", LIFE) as port:
            ports.put(port)
            while not leave.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield int(ports.get(timeout=10).removeprefix(":"))
    finally:
        leave.set()
        thread.join(10)


@pytest.fixture
def stream() -> Iterator[Stream]:
    with house() as port:
        made = Stream(port, "127.0.0.1:1", LIFE)
        yield made
        made.close()


@pytest.mark.parametrize("size", [0, 1, 1000, 100_000, 3_000_000])
def test_arrays_come_back(stream: Stream, size: int) -> None:
    sent = {
        "w": np.random.RandomState(1).rand(size).astype(np.float32),
        "b": np.arange(5, dtype=np.int64),
    }
    for _ in range(3):
        exchange = stream.exchange(20.0)
        exchange.write(parts_of(PUSH, sent))
        exchange.write(parts_of(PULL))
        exchange.close()
        received = exchange.receive(Decoder())
        assert received.message == m.Values(version=5)
        assert all(np.array_equal(received.values[name], sent[name]) for name in sent)


def test_large_frames_leave_while_the_next_is_made_and_in_order(stream: Stream) -> None:
    exchange = stream.exchange(20.0)
    for i in range(20):
        exchange.write(parts_of(PUSH, {"w": np.full(500_000, i, np.float32)}))
    exchange.write(parts_of(PULL))
    found = exchange.receive(Decoder()).values["w"]
    assert set(found.tolist()) == {19}


def test_a_late_answer_is_a_deadline_and_the_exchange_is_over(stream: Stream) -> None:
    exchange = stream.exchange(0.3)
    exchange.write(parts_of(m.Pull(trainer=1, incarnation=2, sequence=1, step=0, names=("slow",))))
    with pytest.raises(DeadlineExceeded, match="did not answer in time"):
        exchange.receive(Decoder())
    with pytest.raises(Unreachable):
        exchange.receive(Decoder())


def test_who_waits_is_woken_by_cancel(stream: Stream) -> None:
    exchange = stream.exchange(30.0)
    exchange.write(parts_of(m.Pull(trainer=1, incarnation=2, sequence=1, step=0, names=("slow",))))
    threading.Timer(0.2, exchange.cancel).start()
    began = time.monotonic()
    with pytest.raises(Unreachable):
        exchange.receive(Decoder())
    assert time.monotonic() - began < 5


def test_noise_is_refused_and_the_connection_ends(stream: Stream) -> None:
    exchange = stream.exchange(10.0)
    exchange.write([b"x" * 100])
    answer = exchange.receive(Decoder()).message
    assert isinstance(answer, m.Refused)
    with pytest.raises(BiremeError):
        exchange.receive(Decoder())


def test_a_damaged_head_is_refused() -> None:
    bad = bytearray(framed(PULL))
    bad[20] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        Decoder().announce(bytes(bad))


def test_another_servers_port_is_noticed() -> None:
    with house() as port, pytest.raises(OSError, match="another server"):
        Stream(port, "127.0.0.1:1", LIFE + 1)


def test_a_port_where_nobody_speaks_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(OSError, match="timed out"):
            Stream(silent.getsockname()[1], "127.0.0.1:1", LIFE)
        assert time.monotonic() - began < 5


def test_the_same_frame_goes_over_grpc_in_pieces() -> None:
    values = {"w": np.arange(1_000_000, dtype=np.float32), "b": np.zeros(3)}
    assert b"".join(joined(parts_of(PUSH, values))) == b"".join(encode(PUSH, values))
    assert joined(parts_of(PULL)) == encode(PULL)
