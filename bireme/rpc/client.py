"""The trainer's end of a connection: `Wire` over a gRPC channel. Every call has a deadline;
nothing is retried here.

Whether a lost call may be repeated is known one floor up, where calls have numbers.
"""

import queue
from collections.abc import Iterator
from typing import Any

import grpc

from bireme.errors import DeadlineExceeded

from .codec import pack, unpack
from .options import channel_options
from .server import BRIEF, CALL, EXCHANGE
from .wire import Foreign, Unreachable

__all__ = ["GrpcWire"]


def _translated(error: Any, endpoint: str) -> Exception:
    if isinstance(error, grpc.FutureCancelledError):
        return Unreachable(f"server {endpoint}: cancelled", peer=f"server {endpoint}")
    code, detail = error.code(), error.details()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Foreign(
            f"server {endpoint} does not speak bireme's protocol", peer=f"server {endpoint}"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(
            f"server {endpoint} did not answer in time", peer=f"server {endpoint}"
        )
    return Unreachable(
        f"server {endpoint}: {code.name.lower()}, {detail}", peer=f"server {endpoint}"
    )


BRIEF_LIMIT = 256 << 10  # bytes that may wait for the end of a brief exchange


class GrpcStream:
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


class GrpcBrief:
    """An exchange in one call each way, which costs a third of a stream; it becomes a stream when
    more is written than should wait.
    """

    def __init__(self, wire: "GrpcWire", timeout: float) -> None:
        self._wire = wire
        self._timeout = timeout
        self._waiting: list[bytes] = []
        self._size = 0
        self._stream: GrpcStream | None = None
        self._call: Any = None
        self._answers: Iterator[bytes] | None = None
        self._cancelled = False

    def write(self, pieces: list[bytes]) -> None:
        if self._stream is not None:
            self._stream.write(pieces)
            return
        self._waiting += pieces
        self._size += sum(map(len, pieces))
        if self._size > BRIEF_LIMIT:
            self._stream = self._wire.exchange(self._timeout)
            self._stream.write(self._waiting)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        else:
            self._call = self._wire.brief.future(pack(self._waiting), timeout=self._timeout)

    def read(self) -> bytes | None:
        if self._stream is not None:
            return self._stream.read()
        if self._call is None or self._cancelled:
            raise Unreachable("cancelled", peer=f"server {self._wire.endpoint}")
        if self._answers is None:
            try:
                self._answers = iter(unpack(self._call.result()))
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                raise _translated(error, self._wire.endpoint) from None
        return next(self._answers, None)

    def cancel(self) -> None:
        self._cancelled = True
        for running in (self._stream, self._call):
            if running is not None:
                running.cancel()


class GrpcWire:
    """A channel to one server; opening it does not connect yet."""

    def __init__(self, endpoint: str, silence: float) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=channel_options(silence))
        self._call = self._channel.unary_unary(CALL)
        self._exchange = self._channel.stream_stream(EXCHANGE)
        self.brief = self._channel.unary_unary(BRIEF)

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        try:
            reply: bytes = self._call(request, timeout=timeout, wait_for_ready=wait)
        except grpc.RpcError as error:
            raise _translated(error, self.endpoint) from None
        return reply

    def exchange(self, timeout: float, brief: bool = False) -> Any:
        return (
            GrpcBrief(self, timeout)
            if brief
            else GrpcStream(self._exchange, timeout, self.endpoint)
        )

    def close(self) -> None:
        self._channel.close()
