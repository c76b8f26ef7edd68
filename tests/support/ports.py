"""Ports that nobody listens on."""

import random
import socket
from collections.abc import Callable

import pytest


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Each call gives another free port, of those that no outgoing connection takes meanwhile."""
    given: set[int] = set()

    def choose() -> int:
        while True:
            port = random.randrange(10_000, 32_000)
            with socket.socket() as probe:
                if port not in given and probe.connect_ex(("127.0.0.1", port)):
                    given.add(port)
                    return port

    return choose
