"""The admin port of a process: status pages over HTTP for people and monitoring.

    /healthz 200 while the process is alive   /readyz 200 once it is ready for work, else 503
    /metrics Prometheus text                  /status JSON          /stacks every thread's stack
    /shards  what a server holds, JSON        /trace?seconds=N      a recording, Chrome's format

A separate thread serves the pages, independently of the event loop and of training. It only reads.
"""

import collections
import json
import os
import platform
import sys
import threading
import time
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from bireme.errors import ConfigError
from bireme.job_token import check_address, is_loopback, job_token
from bireme.version import __version__

from . import tracing
from .counters import Sample, Tally, tally
from .exposition import registry_of
from .http_port import TEXT, HttpPort, Page
from .step_clock import PHASES

__all__ = ["Admin"]

JSON = "application/json"
WINDOW = 20  # samples of the totals, one per beat
BEAT = 0.5  # seconds
RECENT = 1.9  # seconds that rates are computed over at least
TRACE = "/trace"
LONGEST_TRACE = 60.0  # seconds
TRACES = 8  # at once
Totals = tuple[float, dict[str, float]]  # when they were read, by time.monotonic


class Admin:
    """One process's admin port; serves until `close`."""

    def __init__(self, host: str, port: int, books: Tally = tally) -> None:
        self._books = books
        self._began = time.time()
        self._registry = registry_of(self._samples)
        self._past: collections.deque[Totals] = collections.deque(maxlen=WINDOW)
        self._traces = threading.BoundedSemaphore(TRACES)
        check_address(f"{host}:{port}")
        self.beat()
        try:
            token = "" if is_loopback(host) else job_token()
            self._port = HttpPort((host, port), self.page, token, self._look)
        except OSError as error:
            raise ConfigError(
                f"cannot open the admin port {host}:{port}: {error.strerror}",
                hint="FLAGS_admin_port=0 takes any free port; -1 opens none",
            ) from None

    @property
    def endpoint(self) -> str:
        host, port = self._port.server_address[:2]
        return f"{host if isinstance(host, str) else host.decode()}:{port}"

    def close(self) -> None:
        self._port.close()

    # -- pages -----------------------------------------------------------------------------
    def page(self, path: str) -> Page:
        """Status code, content type and text of a page."""
        name, _, query = path.partition("?")
        if name == TRACE:
            return self._trace(urllib.parse.parse_qs(query))
        make = self._PAGES.get(name.rstrip("/") or "/")
        return make(self) if make else (404, TEXT, f"no such page; there are {_listed()}\n")

    def _healthy(self) -> Page:
        return 200, TEXT, "ok\n"

    def _is_ready(self) -> Page:
        return (200, TEXT, "ready\n") if self._books.ready else (503, TEXT, "not yet\n")

    def _metrics(self) -> Page:
        return 200, CONTENT_TYPE_LATEST, generate_latest(self._registry).decode()

    def _samples(self) -> Iterator[Sample]:
        labels = {"version": __version__, "role": self._books.role}
        yield Sample("bireme_build_info", 1, labels)
        yield Sample("bireme_incarnation", int(self._began), {"role": self._books.role})
        for source in (self._books, *self._books.sources):
            yield from source.samples()

    def _status(self) -> Page:
        return 200, JSON, json.dumps(self.status(), indent=1, default=str) + "\n"

    def status(self) -> dict[str, Any]:
        """The JSON that `bireme top` reads."""
        books = self._books
        known: dict[str, Any] = {
            "role": books.role,
            "index": books.index,
            "ready": books.ready,
            "pid": os.getpid(),
            "host": platform.node(),
            "time": round(time.time(), 3),
            "started": round(self._began, 3),
            "memory_bytes": _resident(),
            "last_error": books.last_error,
            "faults": [list(fault) for fault in books.faults],
            "rates": self._rates(),
        }
        for source in (books, *books.sources):
            known.update(source.status())
        return known

    def _shards(self) -> Page:
        sources = (self._books, *self._books.sources)
        held = [row for source in sources for row in source.shards()]
        return 200, JSON, json.dumps(held) + "\n"

    def _trace(self, query: Mapping[str, list[str]]) -> Page:
        """Record for some seconds; the thread of this connection waits."""
        try:
            seconds = float(query.get("seconds", ["1"])[-1])
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= LONGEST_TRACE:
            return 400, TEXT, f"seconds must be a number up to {LONGEST_TRACE:g}\n"
        if not self._traces.acquire(blocking=False):
            return 503, TEXT, f"{TRACES} recordings are under way\n"
        recording = tracing.Recording()
        tracing.begin(recording)
        try:
            time.sleep(seconds)
        finally:
            tracing.end(recording)
            self._traces.release()
        made = tracing.part(recording, self._books.role, self._books.index)
        return 200, JSON, json.dumps(made) + "\n"

    def _stacks(self) -> Page:
        return 200, TEXT, _stacks()

    def _index(self) -> Page:
        return 200, TEXT, f"bireme {self._books.role} {self._books.index}: {_listed()}\n"

    _PAGES: ClassVar[dict[str, Callable[["Admin"], Page]]] = {
        "/": _index,
        "/health": _healthy,
        "/healthz": _healthy,
        "/readyz": _is_ready,
        "/metrics": _metrics,
        "/status": _status,
        "/shards": _shards,
        "/stacks": _stacks,
    }

    # -- rates -----------------------------------------------------------------------------
    def _look(self) -> None:
        """Record the totals if it is time."""
        if time.monotonic() - self._past[-1][0] >= BEAT:
            self.beat()

    def beat(self) -> None:
        """Record the current totals."""
        totals: dict[str, float] = {}
        for source in (self._books, *self._books.sources):
            for name, value in source.totals().items():
                totals[name] = totals.get(name, 0.0) + value
        self._past.append((time.monotonic(), totals))

    def _rates(self) -> dict[str, Any]:
        """Growth per second of late, the mean wait, and of each step the seconds per phase."""
        self.beat()
        (then, before), (now, after) = self._window()
        grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
        elapsed = max(1e-3, now - then)
        rates: dict[str, Any] = {
            f"{n}_per_second": grown.get(n, 0.0) / elapsed for n in ("steps", "samples")
        }
        rates |= {f"{n}_bytes_per_second": grown.get(n, 0.0) / elapsed for n in _BYTES}
        waits = grown.get("waits", 0.0)
        rates["wait_seconds"] = grown["waited"] / waits if waits else 0.0
        rates["phase_seconds"] = _per_step(grown)
        return {name: _short(value) for name, value in rates.items()}

    def _window(self) -> tuple[Totals, Totals]:
        """Totals of some time ago, and now: the shortest time in which a step ended."""
        past, last = list(self._past), self._past[-1]
        for one in reversed(past):
            stepped = last[1].get("steps", 0.0) > one[1].get("steps", 0.0)
            if last[0] - one[0] >= RECENT and stepped:
                return one, last
        return past[0], last


_BYTES = ("sent", "received")


def _short(value: Any) -> Any:
    """Four digits are enough for people, and make recordings smaller."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.4g}")


def _per_step(grown: Mapping[str, float]) -> dict[str, float]:
    steps = grown.get("steps", 0.0)
    return {name: grown[name] / steps for name in PHASES if grown.get(name, 0.0) > 0 and steps}


def _resident() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _listed() -> str:
    return " ".join([*(path for path in Admin._PAGES if path not in ("/", "/health")), TRACE])


def _stacks() -> str:
    """The stack of every thread, most recent call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        lines = "".join(traceback.format_stack(frame))
        parts.append(f"-- {names.get(number, number)}\n{lines}")
    return "\n".join(parts)
