"""Small framed messages between processes of one job: bytes in, bytes out, always a deadline.

A process listens on its endpoint and answers with a function it is given; others call it. This
file knows gRPC and its traps, and refuses to know what the bytes mean. For control only: bulk
data has faster ways.
"""

import errno
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import grpc

from bireme.errors import ConfigError, DeadlineExceeded, PeerLost, ProtocolError

from .ports import reserved_ports

__all__ = ["PeerClient", "PeerServer"]

_SERVICE = "bireme.Peer"
_METHOD = "Ask"
_LIMIT = 16 << 20  # a control message above this is a mistake or an attack

_COMMON = [
    ("grpc.max_send_message_length", _LIMIT),
    ("grpc.max_receive_message_length", _LIMIT),
    ("grpc.enable_http_proxy", 0),
]
_CLIENT = [
    *_COMMON,
    ("grpc.use_local_subchannel_pool", 1),
]


class PeerServer:
    """Listens on `endpoint` and answers every message with `handle(message)`."""

    def __init__(self, endpoint: str, handle: Callable[[bytes], bytes], workers: int = 8) -> None:
        self.endpoint = endpoint
        port = int(endpoint.rpartition(":")[2])
        options = [*_COMMON, ("grpc.so_reuseport", int(port in reserved_ports()))]
        # `handle` never waits, so a few threads serve any number of ranks.
        self._workers = _Workers(workers)
        self._server = grpc.server(self._workers, options=options)
        call = grpc.unary_unary_rpc_method_handler(_guarded(handle))
        generic = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: call})
        self._server.add_generic_rpc_handlers((generic,))
        self.port = self._bind(endpoint)
        self._server.start()

    def _bind(self, endpoint: str) -> int:
        try:
            port = 0 if _taken(endpoint) else int(self._server.add_insecure_port(endpoint))
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigError(
                f"cannot listen on {endpoint}: the port is in use, or the address not of this host",
                hint="choose another endpoint, or end the process that holds the port",
            )
        return port

    def close(self) -> None:
        self._server.stop(grace=0.2).wait(2)
        self._workers.shutdown()


class _Workers(Executor):
    """Daemon threads that serve until the process ends.

    The standard pool stops taking work as soon as the interpreter begins to exit, which is just
    when the last words between ranks are spoken.
    """

    def __init__(self, count: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._serve, name="bireme-peer", daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._work.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (run := self._work.get()) is not None:
            run()


def _taken(endpoint: str) -> bool:
    """Whether somebody listens there; gRPC would find out too, but write about it to stderr."""
    host, _, port = endpoint.rpartition(":")
    if int(port) == 0 or int(port) in reserved_ports():
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), int(port)))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _guarded(handle: Callable[[bytes], bytes]) -> Callable[[bytes, Any], bytes]:
    def answer(message: bytes, context: Any) -> bytes:
        try:
            return handle(message)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    return answer


class PeerClient:
    """Calls one endpoint. `peer` is how errors name it."""

    def __init__(self, endpoint: str, peer: str) -> None:
        self._peer = peer
        self._endpoint = endpoint
        self._open()

    def _open(self) -> None:
        self._channel = grpc.insecure_channel(self._endpoint, options=_CLIENT)
        self._ask = self._channel.unary_unary(f"/{_SERVICE}/{_METHOD}")

    def ask(self, message: bytes, timeout: float) -> bytes:
        """The answer, or PeerLost at once when nobody listens, or DeadlineExceeded."""
        try:
            return bytes(self._ask(message, timeout=timeout))
        except grpc.RpcError as error:
            raise self._translated(error, timeout) from None

    def _translated(self, error: Any, timeout: float) -> Exception:
        code = error.code()
        if code is grpc.StatusCode.CANCELLED:  # another thread met the loss first
            return PeerLost(f"{self._peer} does not answer at {self._endpoint}", peer=self._peer)
        if code is grpc.StatusCode.UNAVAILABLE:
            # A channel waits at least 100 ms before it dials again; a new one dials at once.
            self._channel.close()
            self._open()
            return PeerLost(f"{self._peer} does not answer at {self._endpoint}", peer=self._peer)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = f"{self._peer} at {self._endpoint} gave no answer within {timeout:.1f} s"
            return DeadlineExceeded(text, peer=self._peer)
        text = f"{self._peer} at {self._endpoint} refused: {error.details()}"
        return ProtocolError(text, peer=self._peer)

    def close(self) -> None:
        self._channel.close()
