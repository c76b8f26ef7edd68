"""The way in for processes of one host: brief exchanges over a Unix socket, and its end."""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from bireme.errors import DeadlineExceeded
from bireme.rpc.door import Door, opened
from bireme.rpc.wire import Unreachable

END = "server 1.2.3.4:5"


class Echo:
    """Says every piece back; `slow` waits before it does."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def call(self, request: bytes) -> bytes:
        return request

    async def exchange(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            if piece == b"slow":
                try:
                    await asyncio.sleep(30)
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            yield piece


@contextmanager
def house(service: Echo) -> Iterator[str]:
    """A server with a door, on an event loop of its own; gives the door's name."""
    names: queue.SimpleQueue[str] = queue.SimpleQueue()
    leave = threading.Event()

    async def run() -> None:
        async with opened(service) as name:
            names.put(name)
            while not leave.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield names.get(timeout=10)
    finally:
        leave.set()
        thread.join(10)


def ask(door: Door, *pieces: bytes, timeout: float = 10.0) -> list[bytes]:
    exchange = door.exchange(timeout)
    exchange.write(list(pieces))
    exchange.close()
    found = []
    while (piece := exchange.read()) is not None:
        found.append(piece)
    return found


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def name(echo: Echo) -> Iterator[str]:
    with house(echo) as name:
        yield name


@pytest.fixture
def door(name: str) -> Iterator[Door]:
    door = Door(name, "1.2.3.4:5")
    yield door
    door.close()


def test_pieces_come_back_whole_and_in_order_however_long(door: Door) -> None:
    long = bytes(range(256)) * 20_000
    assert ask(door, b"a", b"", long) == [b"a", b"", long]
    assert ask(door, b"b") == [b"b"]
    assert ask(door) == []


def test_a_late_answer_is_an_error_and_is_never_taken_for_the_next_one(door: Door) -> None:
    exchange = door.exchange(0.2)
    exchange.write([b"slow"])
    exchange.close()
    with pytest.raises(DeadlineExceeded, match=END):
        exchange.read()
    with pytest.raises(Unreachable):
        exchange.read()


def test_cancelling_wakes_the_reader_and_ends_the_call_at_the_server(
    door: Door, echo: Echo
) -> None:
    exchange = door.exchange(20)
    exchange.write([b"slow"])
    exchange.close()
    threading.Timer(0.2, exchange.cancel).start()
    began = time.monotonic()
    with pytest.raises(Unreachable, match=END):
        exchange.read()
    assert time.monotonic() - began < 5
    assert echo.cancelled.wait(5)


def test_a_server_that_goes_is_unreachable_and_leaves_no_door(echo: Echo) -> None:
    with house(echo) as name:
        door = Door(name, "1.2.3.4:5")
        assert ask(door, b"a") == [b"a"]
    with pytest.raises(Unreachable, match=END):
        ask(door, b"b")
    door.close()
    with pytest.raises(OSError, match="refused"):
        Door(name, "1.2.3.4:5")


def test_an_absurd_length_closes_the_connection(door: Door) -> None:
    door._socket.sendall(b"\xff" * 8)
    with pytest.raises(Unreachable, match=END):
        ask(door, b"a")
