"""A reserved port stays ours until the reservation ends."""

import socket
from collections.abc import Iterator

import pytest

from bireme.errors import ConfigError
from bireme.fleet.launcher.ports import Reservation

pytestmark = pytest.mark.wire


@pytest.fixture
def reservation() -> Iterator[Reservation]:
    with Reservation(2) as held:
        yield held


def bind(port: int, share: bool) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(share))
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def test_reserved_ports_differ(reservation: Reservation) -> None:
    assert len(set(reservation.ports)) == 2
    assert reservation.endpoints[0] == f"127.0.0.1:{reservation.ports[0]}"


def test_a_stranger_cannot_bind_a_reserved_port(reservation: Reservation) -> None:
    with pytest.raises(OSError, match="in use"):
        bind(reservation.ports[0], share=False)


def test_the_owner_binds_and_listens_and_is_reached(reservation: Reservation) -> None:
    port = reservation.ports[0]
    with bind(port, share=True) as server:
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            connection, _ = server.accept()
            connection.close()


def test_the_kernel_never_gives_a_reserved_port_away(reservation: Reservation) -> None:
    taken = set()
    for _ in range(300):
        with bind(0, share=True) as sock:
            taken.add(sock.getsockname()[1])
    assert not taken & set(reservation.ports)


def test_a_port_in_use_is_refused_with_its_number() -> None:
    with bind(0, share=True) as other:
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot take port {port} of 127.0.0.1"):
            Reservation(1, first=port)


def test_an_address_of_another_machine_is_refused_as_such() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.77 is no address of this machine"):
        Reservation(1, host="192.0.2.77")


def test_ports_are_free_again_afterwards() -> None:
    with Reservation(1) as held:
        port = held.ports[0]
    bind(port, share=False).close()
