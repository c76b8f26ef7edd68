"""Ports that nobody listens on."""

import socket
from collections.abc import Callable

import pytest


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Each call gives another port that was free a moment ago."""

    def choose() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return choose
