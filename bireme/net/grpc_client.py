"""The trainer's end of a gRPC channel: an `Endpoint`. Every call has a deadline; nothing is retried
here.

Whether a lost call may be repeated is known one floor up, where calls have numbers.
"""

import queue
from collections.abc import Sequence
from typing import Any

import grpc

from bireme.errors import DeadlineExceeded

from . import messages as m
from . import socket_client
from .carriers import Carrier, Foreign, Unreachable
from .frames import Buffer, Decoder, Received, pieces_of
from .grpc_options import CALL, EXCHANGE, channel_options
from .security import metadata, open_channel, unauthenticated

__all__ = ["GrpcEndpoint"]


def _translated(error: Any, peer: str) -> Exception:
    if isinstance(error, grpc.FutureCancelledError):
        return Unreachable(f"{peer}: cancelled", peer=peer)
    code, detail = error.code(), error.details()
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Foreign(f"{peer} does not speak bireme's protocol", peer=peer)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{peer} did not answer in time", peer=peer)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return unauthenticated(peer, detail)
    return Unreachable(f"{peer}: {code.name.lower()}, {detail}", peer=peer)


class GrpcExchange:
    """One bidirectional stream; gRPC takes the pieces in a thread of its own."""

    def __init__(self, method: Any, timeout: float, peer: str) -> None:
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._peer = peer
        pieces = iter(self._pieces.get, None)
        self._stream = method(pieces, timeout=timeout, metadata=metadata())

    def write(self, parts: Sequence[Buffer]) -> None:
        for piece in pieces_of(parts):
            self._pieces.put(piece)

    def end(self) -> None:
        self._pieces.put(None)

    def receive(self, decoder: Decoder) -> Received:
        try:
            for piece in self._stream:
                received = decoder.feed(piece)
                if received is not None:
                    return received
        except grpc.RpcError as error:
            raise _translated(error, self._peer) from None
        raise Unreachable(f"{self._peer} ended the exchange without an answer", peer=self._peer)

    def cancel(self) -> None:
        self._pieces.put(None)
        self._stream.cancel()


class GrpcEndpoint:
    """A channel to one server; opening it does not connect yet."""

    def __init__(self, endpoint: str, silence: float, call: str = CALL, peer: str = "") -> None:
        """`call` is the path of small calls, `peer` how errors name the server."""
        self.endpoint = endpoint
        self._peer = peer or f"server {endpoint}"
        self._channel = open_channel(endpoint, channel_options(silence))
        self._call = self._channel.unary_unary(call)
        self._exchange = self._channel.stream_stream(EXCHANGE)

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        shown = metadata()
        try:
            reply: bytes = self._call(request, timeout=timeout, metadata=shown, wait_for_ready=wait)
        except grpc.RpcError as error:
            raise _translated(error, self._peer) from None
        except ValueError:  # gRPC's answer if another thread has closed the channel
            raise Unreachable(f"{self._peer}: closed", peer=self._peer) from None
        return reply

    def exchange(self, timeout: float) -> GrpcExchange:
        return GrpcExchange(self._exchange, timeout, self._peer)

    def fileno(self) -> int:
        return -1

    def open(self, offers: Sequence[m.Offer], life: int, key: bytes) -> Carrier:
        return socket_client.connect(offers, self.endpoint, life, key) or self

    def close(self) -> None:
        self._channel.close()
