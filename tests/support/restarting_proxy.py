"""A TCP proxy that is started again and again: in between it refuses every connection.

It listens on another loopback address, at the same ports as the processes behind it.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from functools import partial

__all__ = ["NEAR", "RestartingProxy"]

NEAR, FAR = "127.0.0.2", "127.0.0.1"
EVERY = 10.0  # seconds from one restart to the next


class RestartingProxy:
    """Passes bytes on from NEAR to FAR, from a thread of its own. Each restart takes `seconds`; the
    first one begins with `restart`.
    """

    def __init__(
        self, ports: Iterable[int], seconds: float, restarted: Callable[[int], None]
    ) -> None:
        """`restarted` is called after each restart, with how many there have been."""
        self._held = [_bound(port) for port in ports]  # so that no other process takes them
        self._seconds = seconds
        self._restarted = restarted
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._cycle: asyncio.Task[None] | None = None
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def restart(self) -> None:
        """From now on restart every EVERY seconds."""

        def begin() -> None:
            self._cycle = self._loop.create_task(self._restart())

        self._loop.call_soon_threadsafe(begin)

    def close(self) -> None:
        """End it, and every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        for held in self._held:
            held.close()

    async def _end(self) -> None:
        self._refuse()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart(self) -> None:
        count = 0
        while True:
            self._refuse()
            await asyncio.sleep(self._seconds)  # the fault
            await self._listen()
            count += 1
            self._restarted(count)
            await asyncio.sleep(EVERY - self._seconds)  # the time between faults

    def _refuse(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _listen(self) -> None:
        for held in self._held:
            port = held.getsockname()[1]
            join = partial(self._join, port)
            self._servers.append(await asyncio.start_server(join, NEAR, port, reuse_port=True))

    async def _join(
        self, port: int, near: asyncio.StreamReader, to_near: asyncio.StreamWriter
    ) -> None:
        self._writers.add(to_near)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far, to_far = await asyncio.open_connection(FAR, port)
            self._writers.add(to_far)
            await asyncio.gather(_pump(near, to_far), _pump(far, to_near))
            self._writers.discard(to_far)
        self._writers.discard(to_near)
        to_near.transport.abort()


def _bound(port: int) -> socket.socket:
    """A socket that does not listen: connections to its port are refused."""
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind((NEAR, port))
    return held


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass bytes on until either end closes."""
    with contextlib.suppress(OSError):
        while piece := await source.read(1 << 16):
            sink.write(piece)
            await sink.drain()
    sink.transport.abort()
