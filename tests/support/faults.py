"""Trouble on the way: a dial that loses, repeats, cuts and delays exchanges, by seed or by script.

It wraps any other dial. What a fault does is what networks do: a call may be lost before or after
it has arrived, may arrive twice, and an old one may arrive late.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from bireme.rpc.wire import Unreachable

KINDS = ("lose", "lose answer", "cut", "twice", "late", "delay")


class Faults:
    """Decides, exchange by exchange, what goes wrong; `rate` is the share of exchanges in
    trouble.
    """

    def __init__(self, seed: int, rate: float = 0.3, kinds: tuple[str, ...] = KINDS) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.rate = rate
        self._kinds = kinds
        self.count = 0

    def choose(self) -> str:
        with self._lock:
            if self._random.random() >= self.rate:
                return "none"
            self.count += 1
            return self._random.choice(self._kinds)

    def fraction(self) -> float:
        with self._lock:
            return self._random.random()

    def dial(self, inner: Callable[[str], Any]) -> Callable[[str], Any]:
        """`inner`, through this trouble."""
        return lambda endpoint: FaultyWire(inner(endpoint), self)


class FaultyWire:
    """A wire whose exchanges meet faults; small calls are lost at times."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self.endpoint: str = inner.endpoint
        self._inner = inner
        self._faults = faults

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        fault = self._faults.choose()
        if fault in ("lose", "cut"):
            raise Unreachable("lost by the test")
        answer: bytes = self._inner.call(request, timeout, wait)
        if fault == "twice":
            answer = self._inner.call(request, timeout, wait)
        if fault == "lose answer":
            raise Unreachable("answer lost by the test")
        return answer

    def exchange(self, timeout: float, brief: bool = False) -> Any:
        return FaultyExchange(self._inner, timeout, self._faults)

    def close(self) -> None:
        self._inner.close()


class FaultyExchange:
    """Collects what is written and sends it at the end, as the fault says."""

    def __init__(self, wire: Any, timeout: float, faults: Faults) -> None:
        self._wire = wire
        self._timeout = timeout
        self._faults = faults
        self._fault = faults.choose()
        self._pieces: list[bytes] = []
        self._stream: Any = None
        self._cancelled = False

    def write(self, pieces: list[bytes]) -> None:
        self._pieces += pieces

    def close(self) -> None:
        if self._fault == "delay":
            time.sleep(0.02 * self._faults.fraction())
        if self._fault == "lose":
            return
        if self._fault == "cut":
            self._send(self._pieces[: int(len(self._pieces) * self._faults.fraction())], end=False)
            return
        if self._fault == "late":  # an attempt that is given up, and arrives after its successor
            late = list(self._pieces)
            timer = threading.Timer(0.02, lambda: self._read_all(self._send(late)))
            timer.daemon = True
            timer.start()
            return
        if self._fault == "twice":
            self._read_all(self._send(self._pieces))
        self._stream = self._send(self._pieces)

    def _send(self, pieces: list[bytes], end: bool = True) -> Any:
        stream = self._wire.exchange(self._timeout)
        stream.write(pieces)
        if end:
            stream.close()
        else:
            stream.cancel()
        return stream

    def _read_all(self, stream: Any) -> None:
        """Let a twin's answer come and drop it, without waiting for it."""
        threading.Thread(target=_drain, args=(stream,), daemon=True).start()

    def read(self) -> bytes | None:
        if self._stream is None or self._cancelled:
            raise Unreachable("lost by the test")
        if self._fault == "lose answer":
            self._stream.read()
            raise Unreachable("answer lost by the test")
        piece: bytes | None = self._stream.read()
        return piece

    def cancel(self) -> None:
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()


def _drain(stream: Any) -> None:
    try:
        while stream.read() is not None:
            pass
    except Unreachable:
        pass


class SlowWire:
    """A wire on which every message takes its time, a different one each."""

    def __init__(self, inner: Any, longest: float, seed: int) -> None:
        self.endpoint: str = inner.endpoint
        self._inner = inner
        self._longest = longest
        self._random = random.Random(seed)

    def wait(self) -> None:
        time.sleep(self._longest * self._random.random())

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        self.wait()
        answer: bytes = self._inner.call(request, timeout, wait)
        self.wait()
        return answer

    def exchange(self, timeout: float, brief: bool = False) -> Any:
        return SlowExchange(self._inner.exchange(timeout, brief), self)

    def close(self) -> None:
        self._inner.close()


class SlowExchange:
    """Each frame waits before it leaves, each answer before it is read."""

    def __init__(self, inner: Any, wire: SlowWire) -> None:
        self._inner = inner
        self._wire = wire
        self.close, self.cancel = inner.close, inner.cancel

    def write(self, pieces: list[bytes]) -> None:
        self._wire.wait()
        self._inner.write(pieces)

    def read(self) -> bytes | None:
        self._wire.wait()
        piece: bytes | None = self._inner.read()
        return piece
