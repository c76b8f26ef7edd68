"""A TCP proxy that treats connections badly: it delays what passes, and cuts in the middle of
frames.

What goes wrong is decided by a seed. It knows bytes and sockets, no protocol.
"""

import contextlib
import random
import socket
import threading
import time

__all__ = ["Proxy"]


class Proxy:
    """Listens on a free port of its own, and passes bytes on to `target`, a host:port.

    Most connections are cut once some hundreds or thousands of bytes have passed, after a part of
    what was just read; `delay` is the longest time in seconds that a piece is held back.
    """

    def __init__(self, target: str, seed: int, *, share: float = 0.9, delay: float = 0.004) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._share = share
        self._delay = delay
        self.cuts = 0
        self.passed = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            _end(each)
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: "object", *given: "object") -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                self._join(near)

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, 5)
        except OSError:  # the target has gone: so has this connection
            _end(near)
            return
        self._sockets.append(far)
        cut = self._random.random() < self._share
        left = [self._random.randrange(300, 3000) if cut else 1 << 60]
        self._start(self._pump, near, far, left)
        self._start(self._pump, far, near, left)

    def _pump(self, source: socket.socket, sink: socket.socket, left: list[int]) -> None:
        """Pass bytes on until an end closes, or the connection's number of bytes is used up."""
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                time.sleep(self._delay * self._random.random())  # the fault
                sink.sendall(piece[: max(0, left[0])])
                self.passed += min(len(piece), max(0, left[0]))
                left[0] -= len(piece)
                if left[0] < 0:
                    self.cuts += 1
                    break
        _end(source)
        _end(sink)


def _end(given: socket.socket) -> None:
    with contextlib.suppress(OSError):
        given.shutdown(socket.SHUT_RDWR)
    given.close()
