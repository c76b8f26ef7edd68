"""A server whose event loop runs in a thread of its own."""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod

from bireme.pserver.shell.server import Server

_SECONDS = 20.0


class ServerThread(ABC):
    """`begin` runs `_serve`, which announces itself with `_serving` and then runs `service`."""

    service: Server
    endpoint: str

    def begin(self) -> None:
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(_SECONDS)

    @abstractmethod
    async def _serve(self) -> None:
        """Listen, call `_serving`, and run the service."""

    def _serving(self, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self._loop = asyncio.get_running_loop()
        self._started.set()

    def stop(self, reason: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server ended by itself
            self._loop.call_soon_threadsafe(self.service.stop, reason)

    def wait(self) -> None:
        """Wait for the server to end by itself."""
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.stop("the test is over")
        self.wait()
        self.service.close()
