"""Faults on the way: a dial that loses, repeats, cuts and delays exchanges, by seed or by script.

It wraps any other dial, and whatever carrier that chooses. What a fault does is what networks do:
a call may be lost before or after it has arrived, may arrive twice, and an old one may arrive
late.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from bireme.net.carriers import Unreachable
from bireme.net.frames import Decoder
from bireme.net.memory import Mappings

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
        return lambda endpoint: FaultyEndpoint(inner(endpoint), self)


class FaultyCarrier:
    """A carrier whose exchanges meet faults. `fresh` gives another connection of the same kind, on
    which copies travel.
    """

    def __init__(self, inner: Any, faults: Faults, fresh: Callable[[], Any]) -> None:
        self._inner = inner
        self._faults = faults
        self._fresh = fresh

    def exchange(self, timeout: float) -> "FaultyExchange":
        return FaultyExchange(self._inner, timeout, self._faults, self._fresh)

    def fileno(self) -> int:
        return -1  # an exchange that is lost leaves nothing to wait for

    def close(self) -> None:
        self._inner.close()


class FaultyEndpoint(FaultyCarrier):
    """An endpoint of which small calls are lost, too; so are exchanges of what it opens."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        super().__init__(inner, faults, lambda: _Borrowed(inner))
        self.endpoint: str = inner.endpoint

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

    def open(self, offers: Any, life: int, key: bytes) -> Any:
        found = self._inner.open(offers, life, key)
        if found is self._inner:
            return self
        return FaultyCarrier(found, self._faults, lambda: self._inner.open(offers, life, key))


class _Borrowed:
    """An endpoint that stays open."""

    def __init__(self, inner: Any) -> None:
        self.exchange = inner.exchange

    def close(self) -> None:
        pass


class FaultyExchange:
    """Collects what is written and sends it at the end, as the fault says."""

    def __init__(
        self, carrier: Any, timeout: float, faults: Faults, fresh: Callable[[], Any]
    ) -> None:
        self._carrier = carrier
        self._timeout = timeout
        self._faults = faults
        self._fresh = fresh
        self._fault = faults.choose()
        self._frames: list[list[Any]] = []
        self._exchange: Any = None
        self._cancelled = False

    def write(self, parts: Any) -> None:
        self._frames.append([bytes(part) for part in parts])

    def end(self) -> None:
        if self._fault == "delay":
            time.sleep(0.02 * self._faults.fraction())  # the fault
        if self._fault == "lose":
            return
        if self._fault == "cut":
            cut = self._carrier.exchange(self._timeout)
            for parts in self._begun():
                cut.write(parts)
            cut.end()
            cut.cancel()
            return
        if self._fault == "late":  # an attempt that is given up, and arrives after its successor
            timer = threading.Timer(0.02, self._copy)
            timer.daemon = True
            timer.start()
            return
        if self._fault == "twice":
            threading.Thread(target=self._copy, daemon=True).start()
        self._exchange = self._sent(self._carrier)

    def _begun(self) -> list[list[Any]]:
        """Some frames, and a part of the next one."""
        whole = int(len(self._frames) * self._faults.fraction())
        part = b"".join(self._frames[whole])
        return [*self._frames[:whole], [part[: int(len(part) * self._faults.fraction())]]]

    def _sent(self, carrier: Any) -> Any:
        exchange = carrier.exchange(self._timeout)
        for parts in self._frames:
            exchange.write(parts)
        exchange.end()
        return exchange

    def _copy(self) -> None:
        """The same once more, over a connection of its own; the answer is dropped."""
        with contextlib.suppress(Exception), contextlib.closing(self._fresh()) as carrier:
            self._sent(carrier).receive(Decoder(attach=Mappings()))  # unless the job is over

    def receive(self, decoder: Any) -> Any:
        if self._exchange is None or self._cancelled:
            raise Unreachable("lost by the test")
        received = self._exchange.receive(decoder)
        if self._fault == "lose answer":
            raise Unreachable("answer lost by the test")
        return received

    def cancel(self) -> None:
        self._cancelled = True
        if self._exchange is not None:
            self._exchange.cancel()


class SlowEndpoint:
    """An endpoint on which everything takes a random time, by seed."""

    def __init__(self, inner: Any, longest: float, seed: int) -> None:
        self.endpoint: str = inner.endpoint
        self._inner = inner
        self._longest = longest
        self._random = random.Random(seed)

    def wait(self) -> None:
        time.sleep(self._longest * self._random.random())  # the fault

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        self.wait()
        answer: bytes = self._inner.call(request, timeout, wait)
        self.wait()
        return answer

    def open(self, offers: Any, life: int, key: bytes) -> Any:
        return self

    def exchange(self, timeout: float) -> "SlowExchange":
        return SlowExchange(self._inner.exchange(timeout), self)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._inner.close()


class SlowExchange:
    """Each frame waits before it leaves, each answer before it is read."""

    def __init__(self, inner: Any, endpoint: SlowEndpoint) -> None:
        self._inner = inner
        self._endpoint = endpoint
        self.end, self.cancel = inner.end, inner.cancel

    def write(self, parts: Any) -> None:
        self._endpoint.wait()
        self._inner.write(parts)

    def receive(self, decoder: Any) -> Any:
        self._endpoint.wait()
        return self._inner.receive(decoder)
