"""Serves the dashboard on loopback, with all scripts and styles from here: no network is needed."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bireme.errors import ConfigError
from bireme.extras import library

from .feed import Feed

__all__ = ["serve"]

HOST = "127.0.0.1"


def serve(
    endpoints: Sequence[str],
    log_dir: Path,
    ports: Sequence[int],
    announce: Callable[[str], None],
) -> None:
    """Serve at the first of `ports` that is free until a signal ends the process; `announce`
    prints where.

    Raises:
        ConfigError: Bokeh is missing, the port is taken, or there is no job to show.
    """
    library("bokeh", "dashboard", "the dashboard")
    from .app import http_server

    feed = Feed(log_dir, endpoints)
    try:
        server = _at_a_port(ports, lambda port: http_server(feed, HOST, port))
        announce(f"dashboard: http://localhost:{server.port}/")
        server.io_loop.start()
    finally:
        feed.close()


def _at_a_port(ports: Sequence[int], make: Callable[[int], Any]) -> Any:
    """What `make` gives for the first port that is free."""
    *others, last = ports
    for port in others:
        with contextlib.suppress(OSError):
            return make(port)
    try:
        return make(last)
    except OSError as error:
        raise ConfigError(
            f"cannot serve the dashboard at {HOST}:{last}: {error.strerror}",
            hint="--port 0 takes any free port",
        ) from None
