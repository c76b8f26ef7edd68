"""What gRPC's server says in a process's log: nothing, when calls end with it or with their
callers.
"""

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import grpc.aio
import pytest

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
