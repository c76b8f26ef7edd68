"""Many trainers at one server over real sockets: all finish, and who waits keeps nobody else from
pushing, beating or asking after its health.
"""

import http.client
import threading

import numpy as np
import pytest

from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from bireme.net.frames import decode, encode
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.messages import Accepted, Heartbeat
from tests.support.cluster import side_by_side
from tests.support.waiting import until
from tests.wire.test_sockets import connected, live, trained

__all__ = ["live"]

pytestmark = pytest.mark.wire
MANY = 64


@pytest.mark.parametrize("size", [4, 30_000])
def test_64_trainers_at_one_server_finish_with_the_same_values(live, size: int) -> None:
    server = live(MANY, size)
    tasks = {f"t{i}": lambda i=i: trained(server, i, size, 3) for i in range(MANY)}
    found = side_by_side(tasks, timeout=120)
    assert {tuple(np.unique(value)) for value in found.values()} == {(-3.0,)}
    server.wait()  # it ends with the last of them


def waiting(server) -> int:
    return len(server.service._core.calls.parked)


def test_63_calls_that_wait_starve_no_push_no_heartbeat_and_no_health_check(live) -> None:
    server = live(MANY)
    threads = [
        threading.Thread(target=trained, args=(server, i, 4, 1), daemon=True)
        for i in range(MANY - 1)
    ]
    for thread in threads:
        thread.start()
    until(lambda: waiting(server) >= MANY - 1)

    admin = Admin("127.0.0.1", 0, Tally())
    wire = GrpcEndpoint(server.endpoint, 5.0)
    last = connected(server, MANY - 1)
    try:
        asked = http.client.HTTPConnection(admin.endpoint, timeout=5)
        asked.request("GET", "/healthz")
        assert asked.getresponse().status == 200
        asked.close()
        last.servers.greet([server.endpoint])
        beat = encode(Heartbeat(trainer=MANY - 1, incarnation=last.job.incarnation, step=0))
        assert isinstance(decode([wire.call(beat, 5.0)]).message, Accepted)

        gradient = {f"w@GRAD.trainer_{MANY - 1}": np.ones(4, np.float32)}
        last.servers.push(server.endpoint, gradient)
        last.servers.barrier([server.endpoint], strict=True)
        found = last.servers.exchange({server.endpoint: ("w",)})[server.endpoint]["w"]
    finally:
        admin.close()
        wire.close()
        last.close()
    for thread in threads:
        thread.join(20)
    assert found.tolist() == [-1.0] * 4
    assert not any(thread.is_alive() for thread in threads)
