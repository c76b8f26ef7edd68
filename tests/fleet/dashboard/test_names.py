"""By which names a browser may know the dashboard."""

import asyncio
import contextlib
from pathlib import Path

import pytest

pytest.importorskip("bokeh", reason="bireme[dashboard] is not installed")

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from bireme import flags
from bireme.fleet.dashboard.app import http_server
from bireme.fleet.dashboard.feed import Feed
from tests.support import recorded_job

pytestmark = pytest.mark.wire


async def answers(port: int, name: str) -> tuple[int, int]:
    """The status of the page, and of its WebSocket, of which 101 is the best."""
    headers = {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}"}
    page = HTTPRequest(f"http://127.0.0.1:{port}/", headers=headers)
    found = (await AsyncHTTPClient().fetch(page, raise_error=False)).code
    try:
        (await websocket_connect(HTTPRequest(f"ws://127.0.0.1:{port}/ws", headers=headers))).close()
    except HTTPClientError as error:
        return found, error.code
    return found, 101


@pytest.mark.parametrize(
    ("name", "page", "socket"),
    [("localhost", 200, 101), ("127.0.0.1", 200, 101), ("chosen", 200, 101), ("other", 403, 403)],
)
def test_a_browser_that_knows_the_page_by_another_name_sees_nothing(
    tmp_path: Path, name: str, page: int, socket: int
) -> None:
    recorded_job.write(tmp_path, 3)

    async def ask() -> tuple[int, int]:
        server = http_server(feed, "127.0.0.1", 0)
        try:
            return await answers(int(server.port), name)
        finally:
            server.stop()

    with contextlib.closing(Feed(tmp_path)) as feed, flags.restored():
        flags.set_flags({"admin_names": "chosen"})
        assert asyncio.run(ask()) == (page, socket)
