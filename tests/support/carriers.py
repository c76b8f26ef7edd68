"""A server's ways in, on an event loop of their own: sockets and gRPC around any handler."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bireme.net import messages as m
from bireme.net.carriers import Carrier, Handler
from bireme.net.frames import Buffer, Decoder, Received, frame
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening, native_methods
from bireme.net.socket_client import connect
from bireme.net.socket_server import accepting

CARRIERS = ("unix", "tcp", "grpc")
LIFE, KEY = 77, b"k" * 16
KINDS = {"unix": m.UnixSocket, "tcp": m.TcpPort}


@dataclass
class Running:
    """A running server: where it listens, what it offers, and its loop."""

    endpoint: str
    offers: tuple[m.Offer, ...]
    loop: asyncio.AbstractEventLoop

    def open(self, kind: str, key: bytes = KEY, life: int = LIFE) -> Carrier:
        """A carrier of this kind to it."""
        if kind == "grpc":
            return GrpcEndpoint(self.endpoint, 5.0)
        offers = [offer for offer in self.offers if isinstance(offer, KINDS[kind])]
        found = connect(offers, self.endpoint, life, key)
        assert found is not None
        return found


@contextmanager
def running(handler: Handler) -> Iterator[Running]:
    """Serve `handler` over every carrier."""
    started: list[Any] = []
    ready, leave = threading.Event(), threading.Event()

    async def serve() -> None:
        left = asyncio.Event()
        async with (
            accepting(handler, "127.0.0.1:0", LIFE) as offers,
            listening("127.0.0.1:0", native_methods(handler), 5.0) as port,
        ):
            loop = asyncio.get_running_loop()
            started.append(Running(f"127.0.0.1:{port}", offers, loop))
            started.append(left)
            ready.set()
            await left.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield started[0]
    finally:
        started[0].loop.call_soon_threadsafe(started[1].set)
        thread.join(10)
        leave.set()


class Mirror:
    """A handler that gives the last pushed values back; a pull of `slow` takes for ever."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def call(self, request: bytes) -> bytes:
        return request

    def connect(self, hang_up: Callable[[], None] | None = None) -> "MirrorConnection":
        return MirrorConnection(self.cancelled)


class MirrorConnection:
    def __init__(self, cancelled: threading.Event) -> None:
        self.decoder = Decoder()
        self._cancelled = cancelled
        self._values: dict[str, np.ndarray] = {}

    def admit(self, key: bytes) -> bool:
        return key == KEY

    def end(self, reset: bool) -> None:
        pass

    def hear(self, received: Received) -> Awaitable[Sequence[Buffer]] | None:
        if isinstance(received.message, m.Push):
            self._values = received.values
            return None
        return self._answer(getattr(received.message, "names", ()))

    async def _answer(self, names: tuple[str, ...]) -> Sequence[Buffer]:
        if names == ("slow",):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._cancelled.set()
                raise
        if names == ("broken",):
            raise RuntimeError("a fault of the server's own")
        return frame(m.Values(version=5), self._values)


Asked = Callable[..., Received]
