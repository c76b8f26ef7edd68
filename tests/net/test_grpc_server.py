"""What gRPC's server says in a process's log: nothing, when calls end with it or with their
callers, or when it cannot have its port.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import grpc.aio
import pytest

from bireme.errors import ConfigError
from bireme.job_token import TOKEN
from bireme.net.carriers import Unreachable
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.grpc_server import listening, unary_methods

pytestmark = pytest.mark.wire
CALLS = 8


def test_a_server_that_ends_while_calls_wait_ends_them_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
    waiting = threading.Semaphore(0)

    async def wait(message: bytes, peer: str) -> bytes:
        waiting.release()
        await asyncio.get_running_loop().create_future()
        return b""

    async def serve() -> None:
        over = asyncio.Event()
        async with listening("127.0.0.1:0", unary_methods({"/a/b": wait}), 5.0) as port:
            served.set_result((asyncio.get_running_loop(), over, port))
            await over.wait()

    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    loop, over, port = served.result(20)

    def call(number: int) -> None:
        endpoint = GrpcEndpoint(f"127.0.0.1:{port}", 5.0, "/a/b")
        with contextlib.suppress(Unreachable):
            endpoint.call(b"?", 20.0)
        endpoint.close()

    with ThreadPoolExecutor(CALLS) as callers, caplog.at_level(logging.WARNING):
        calls = [callers.submit(call, number) for number in range(CALLS)]
        for _ in calls:
            assert waiting.acquire(timeout=20)
        loop.call_soon_threadsafe(over.set)
        server.join(20)
        assert not server.is_alive()
        for each in calls:
            each.result(20)
    assert caplog.text == ""


@pytest.mark.parametrize(("fault", "logged"), [(grpc.aio.InternalError, 0), (ValueError, 1)])
def test_that_a_caller_is_gone_when_its_answer_comes_is_no_news(
    fault: type[Exception], logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise fault("Failed execute_batch")
    except fault:
        logging.getLogger("grpc._cython.cygrpc").exception("raised by servicer method")
    assert len(caplog.records) == logged


@pytest.mark.parametrize(
    ("host", "reason"),
    [("127.0.0.1", "Address already in use"), ("192.0.2.1", "Cannot assign requested address")],
)
def test_a_port_that_cannot_be_had_is_one_error(
    host: str, reason: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "t" * 32)

    async def serve(endpoint: str) -> None:
        async with listening(endpoint, {}, 5.0):
            pass

    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"{host}:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            asyncio.run(serve(endpoint))
    assert f"cannot listen on {endpoint}: {reason}" in str(caught.value)
    assert capfd.readouterr() == ("", "")
