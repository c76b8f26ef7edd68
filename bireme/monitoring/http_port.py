"""An HTTP port for reading pages, with limits on what its clients may hold: so many connections,
and so long for a request to come and an answer to go.

A thread per connection. What the pages say is not known here.
"""

import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any, BinaryIO

from bireme.job_token import is_same

from .host_names import is_expected

__all__ = ["TEXT", "HttpPort", "Page"]

TEXT = "text/plain; charset=utf-8"
CONNECTIONS = 64  # at once
LARGEST_REQUEST = 8 << 10  # bytes of a request line and its headers
SECONDS = 10.0  # for a request to come, and for its answer to go
LOOK = 0.2  # seconds between two looks at the time
Page = tuple[int, str, str]  # status code, content type, text


class HttpPort(http.server.ThreadingHTTPServer):
    """Serves `page` of a path; `look` is called every LOOK seconds. Without a `token` the name by
    which a client knows the port must be one of ours.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        page: Callable[[str], Page],
        token: str,
        look: Callable[[], None],
    ) -> None:
        """
        Raises:
            OSError: the address cannot be had.
        """
        self.page, self.token, self._look = page, token, look
        self.connections = _Connections()
        super().__init__(address, _Handler)
        thread = threading.Thread(
            target=self.serve_forever, args=(LOOK,), name="admin", daemon=True
        )
        thread.start()

    def server_bind(self) -> None:
        """Skip HTTPServer's lookup of the host name, which may take seconds."""
        super(http.server.HTTPServer, self).server_bind()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Each connection holds a thread; those above the limit are refused."""
        return self.connections.admit(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.connections.end_late()
        self._look()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Connections:
    """The open connections, and since when each waits for its peer: for a request, or for the
    answer to be taken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, float] = {}  # in this order
        self._working: set[socket.socket] = set()  # a page is made for them

    def admit(self, connection: socket.socket) -> bool:
        """Whether there is room for it: where there is none, the connection that has waited longest
        is ended for it.
        """
        with self._lock:
            if len(self._waiting) + len(self._working) >= CONNECTIONS:
                if not self._waiting:
                    return False
                _end(next(iter(self._waiting)), self._waiting)
            self._waiting[connection] = time.monotonic()
            return True

    def work(self, connection: socket.socket) -> None:
        """A request has come."""
        with self._lock:
            if self._waiting.pop(connection, None) is not None:
                self._working.add(connection)

    def wait(self, connection: socket.socket) -> None:
        """The answer is being sent, or was sent."""
        with self._lock:
            if connection in self._working:
                self._working.discard(connection)
                self._waiting[connection] = time.monotonic()

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._waiting.pop(connection, None)
            self._working.discard(connection)

    def end_late(self) -> None:
        """End those that have waited too long."""
        before = time.monotonic() - SECONDS
        with self._lock:
            for connection in [one for one, since in self._waiting.items() if since < before]:
                _end(connection, self._waiting)


def _end(connection: socket.socket, waiting: dict[socket.socket, float]) -> None:
    """Its thread finds out, and closes it."""
    del waiting[connection]
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Request:
    """The lines of one request, limited in size because it is not authenticated yet."""

    def __init__(self, source: BinaryIO | BufferedIOBase) -> None:
        self._source = source
        self._left = LARGEST_REQUEST
        self.close = source.close

    def readline(self, limit: int) -> bytes:
        line = self._source.readline(min(limit, self._left))
        self._left -= len(line)
        if not self._left:
            raise http.client.LineTooLong("request")
        return line


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpPort

    def setup(self) -> None:
        super().setup()
        self._whole = self.rfile

    def handle_one_request(self) -> None:
        self.rfile = _Request(self._whole)  # type: ignore[assignment]  # of it two methods are used
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.connections.work(self.connection)
        try:
            code, kind, text = self._page()
        finally:
            self.server.connections.wait(self.connection)
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(data)

    def _page(self) -> Page:
        token = self.server.token
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and not is_same(shown, token):
            return 401, TEXT, "the job token is missing or wrong: Authorization: Bearer TOKEN\n"
        if not token and not is_expected(self.headers.get("Host", "")):
            return 403, TEXT, "not a name of this process; FLAGS_admin_names adds names\n"
        return self.server.page(self.path)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
