"""The trainer's end of a connection: `Wire` over a gRPC channel. Every call has a deadline;
nothing is retried here.

Whether a lost call may be repeated is known one floor up, where calls have numbers.
"""

import queue
from collections.abc import Iterator
from typing import Any

import grpc

from bireme.errors import DeadlineExceeded

from .options import channel_options
from .server import CALL, EXCHANGE
from .wire import Unreachable

__all__ = ["GrpcWire"]


def _translated(error: Any, endpoint: str) -> Exception:
    code, detail = error.code(), error.details()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(
            f"server {endpoint} did not answer in time", peer=f"server {endpoint}"
        )
    return Unreachable(
        f"server {endpoint}: {code.name.lower()}, {detail}", peer=f"server {endpoint}"
    )


class GrpcExchange:
    """One bidirectional stream; gRPC takes the pieces in a thread of its own."""

    def __init__(self, method: Any, timeout: float, endpoint: str) -> None:
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._endpoint = endpoint
        self._stream = method(iter(self._pieces.get, None), timeout=timeout)
        self._answers: Iterator[bytes] = iter(self._stream)

    def write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self._pieces.put(piece)

    def close(self) -> None:
        self._pieces.put(None)

    def read(self) -> bytes | None:
        try:
            return next(self._answers, None)
        except grpc.RpcError as error:
            raise _translated(error, self._endpoint) from None

    def cancel(self) -> None:
        self._pieces.put(None)
        self._stream.cancel()


class GrpcWire:
    """A channel to one server; opening it does not connect yet."""

    def __init__(self, endpoint: str, silence: float) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=channel_options(silence))
        self._call = self._channel.unary_unary(CALL)
        self._exchange = self._channel.stream_stream(EXCHANGE)

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        try:
            reply: bytes = self._call(request, timeout=timeout, wait_for_ready=wait)
        except grpc.RpcError as error:
            raise _translated(error, self.endpoint) from None
        return reply

    def exchange(self, timeout: float) -> GrpcExchange:
        return GrpcExchange(self._exchange, timeout, self.endpoint)

    def close(self) -> None:
        self._channel.close()
