"""Who may connect to a rank: the job's key first, and from nobody else more than a greeting."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from bireme import flags
from bireme.collective.connections import Address, Listener, Purpose, connect
from bireme.errors import DeadlineExceeded, PeerLost
from bireme.net import sockets

pytestmark = pytest.mark.wire
KEY = sockets.new_key()
PURPOSE = Purpose("world", 1, "collective")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener("127.0.0.1:0")) as made:
        yield made


def soon() -> float:
    return time.monotonic() + 5


def over(kind: str, address: Address) -> Address:
    """The address as a rank of this host, or of another, sees it."""
    return address if kind == "unix" else Address("elsewhere", "", address.tcp, address.life)


def never_fails() -> None:
    """Nobody is known to be lost."""


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_connection_is_handed_out_by_its_purpose(listener: Listener, kind: str) -> None:
    listener.open(KEY)
    address = over(kind, listener.address)
    other = Purpose("world", 1, "messages")
    with (
        connect(address, KEY, other, "rank 0", soon()) as sent,
        connect(address, KEY, PURPOSE, "rank 0", soon()),
        listener.take(PURPOSE, soon(), never_fails),
        listener.take(other, soon(), never_fails) as taken,
    ):
        sent.sendall(b"hello")
        taken.setblocking(True)
        assert taken.recv(5) == b"hello"


def test_a_rank_that_connects_before_the_key_is_known_waits_for_it(listener: Listener) -> None:
    early = sockets.connect_unix(listener.address.unix, 5)
    early.sendall(sockets.greeting(KEY))
    listener.open(KEY)
    assert sockets.read_exactly(early, 16, 5) == sockets.reply(listener.address.life)
    early.close()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_wrong_key_ends_the_connection(listener: Listener, kind: str) -> None:
    listener.open(KEY)
    with pytest.raises(PeerLost, match="rank 0 accepts no connection"):
        connect(over(kind, listener.address), sockets.new_key(), PURPOSE, "rank 0", soon())


def test_another_process_at_the_same_port_is_noticed(listener: Listener) -> None:
    listener.open(KEY)
    before = Address("elsewhere", "", listener.address.tcp, listener.address.life ^ 1)
    with pytest.raises(PeerLost, match="another process listens there"):
        connect(before, KEY, PURPOSE, "rank 0", soon())


def test_another_users_process_is_turned_away(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener.open(KEY)
    monkeypatch.setattr(sockets, "is_trusted", lambda connected: False)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(5)
        stranger.connect(listener.address.unix)
        assert stranger.recv(1) == b""


def test_a_connection_that_says_nothing_is_ended_and_holds_up_nobody(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 0.2)
    with sockets.connect_tcp(listener.address.tcp, 5) as silent:
        listener.open(KEY)
        connect(listener.address, KEY, PURPOSE, "rank 0", soon()).close()
        listener.take(PURPOSE, soon(), never_fails).close()
        assert silent.recv(1) == b""


def test_connections_are_accepted_again_after_descriptors_have_run_out(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sockets, "RETRY_SECONDS", 0.05)
    accept, refusals = sockets.accept, [OSError(24, "Too many open files")] * 2

    def exhausted(listening: socket.socket) -> socket.socket | None:
        if refusals:
            raise refusals.pop()
        return accept(listening)

    monkeypatch.setattr(sockets, "accept", exhausted)
    listener.open(KEY)
    connect(listener.address, KEY, PURPOSE, "rank 0", soon()).close()
    assert "Too many open files" in caplog.text


def test_a_rank_that_never_connects_is_named(listener: Listener) -> None:
    listener.open(KEY)
    with pytest.raises(DeadlineExceeded, match="rank 1 did not connect in time"):
        listener.take(PURPOSE, time.monotonic(), never_fails)


def test_a_closed_listener_frees_its_port(listener: Listener) -> None:
    listener.open(KEY)
    listener.close()
    with closing(sockets.bind(listener.address.tcp)) as again:
        again.listen()


def test_of_two_connections_for_one_purpose_the_first_is_closed(listener: Listener) -> None:
    listener.open(KEY)
    with connect(listener.address, KEY, PURPOSE, "rank 0", soon()) as first:
        first.settimeout(5.0)
        with connect(listener.address, KEY, PURPOSE, "rank 0", soon()):
            assert first.recv(1) == b""
            listener.take(PURPOSE, soon(), lambda: None).close()


def test_a_member_holds_so_many_connections_that_nobody_takes(listener: Listener) -> None:
    flags.set_flags({"rpc_connections_per_peer": 3})
    listener.open(KEY)
    wanted = [Purpose("world", 1, f"channel {i}") for i in range(4)]
    with ExitStack() as held:
        for purpose in wanted[:3]:
            held.enter_context(connect(listener.address, KEY, purpose, "rank 0", soon()))
        with pytest.raises(PeerLost, match="accepts no connection"):
            connect(listener.address, KEY, wanted[3], "rank 0", soon())
        listener.take(wanted[0], soon(), lambda: None).close()
        connect(listener.address, KEY, wanted[3], "rank 0", soon()).close()
