"""Rank 0's register as the ranks reach it: directly at rank 0, by small gRPC calls elsewhere."""

import asyncio
import concurrent.futures
import threading
import time

import msgspec

from bireme.errors import DeadlineExceeded, PeerLost, ProtocolError
from bireme.logs import logger
from bireme.net.carriers import Unreachable

from . import membership as m

__all__ = ["OwnRegister", "RemoteRegister", "read_answer", "read_request"]

_log = logger("collective")

_PATH = "/bireme.Register/Ask"
_Started = concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, int]]
_CLOSING = 2.0  # seconds for answers under way


class RemoteRegister:
    """The register as the other ranks reach it."""

    def __init__(self, coordinator: str, silence: float) -> None:
        self._coordinator = coordinator
        self._silence = silence
        self._closed = False
        self._open()

    def _open(self) -> None:
        from bireme.net.grpc_client import GrpcEndpoint

        self._endpoint = GrpcEndpoint(
            self._coordinator, self._silence, _PATH, f"rank 0 at {self._coordinator}"
        )

    def ask(self, request: m.Request, timeout: float) -> m.State:
        """The answer to a request.

        Raises:
            PeerLost: nobody listens at rank 0's endpoint, or `close` was called.
            DeadlineExceeded: no answer came within `timeout` seconds.
        """
        try:
            answer = self._endpoint.call(msgspec.msgpack.encode(request), timeout)
        except Unreachable:
            self._endpoint.close()
            if not self._closed:
                self._open()  # a channel waits before it dials again; a new one dials at once
            raise PeerLost(
                f"rank 0 does not answer at {self._coordinator}", peer="rank 0"
            ) from None
        except DeadlineExceeded:
            text = f"rank 0 at {self._coordinator} gave no answer within {timeout:.1f} s"
            raise DeadlineExceeded(text, peer="rank 0") from None
        return read_answer(answer)

    def settle(self, timeout: float) -> None:
        """Only rank 0 has something to tell."""

    def close(self) -> None:
        self._closed = True
        self._endpoint.close()


def read_request(message: bytes) -> m.Request:
    """A request as it comes from another process.

    Raises:
        ProtocolError: it is none.
    """
    try:
        request: m.Request = msgspec.msgpack.decode(message, type=m.Request)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not a request to rank 0: {error}") from None
    return request


def read_answer(message: bytes) -> m.State:
    """The register's answer.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return msgspec.msgpack.decode(message, type=m.State)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"not an answer of rank 0: {error}") from None


class OwnRegister:
    """The register at rank 0, served at `endpoint` by an event loop of its own."""

    def __init__(self, endpoint: str, register: m.Register, silence: float) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._stop = asyncio.Event()
        serving: _Started = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(endpoint, silence, serving)),
            name="bireme-register",
            daemon=True,
        )
        self._thread.start()
        self._loop, self.port = serving.result()

    async def _serve(
        self,
        endpoint: str,
        silence: float,
        serving: _Started,
    ) -> None:
        from bireme.net.grpc_server import listening, unary_methods

        try:
            async with listening(endpoint, unary_methods({_PATH: self._answer}), silence) as port:
                serving.set_result((asyncio.get_running_loop(), port))
                await self._stop.wait()
        except BaseException as error:
            if serving.done():
                raise
            serving.set_exception(error)

    async def _answer(self, message: bytes, peer: str) -> bytes:
        state = self.ask(read_request(message), 0)
        if state.refused:  # whoever waits for that rank looks here
            _log.warning("rank 0: %s", state.refused)
        return msgspec.msgpack.encode(state)

    def ask(self, request: m.Request, timeout: float) -> m.State:
        with self._lock:
            return self._register.handle(request, time.monotonic())

    def settle(self, timeout: float) -> None:
        """Wait until the others know what there is to know."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with self._lock:
                if self._register.may_close():
                    return
            time.sleep(0.01)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_CLOSING)
