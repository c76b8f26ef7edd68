"""What a peer may take up, before it is known and after: small, and set by flags."""

import contextlib
import gc
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.errors import FormatError
from bireme.net import messages as m
from bireme.net import socket_server, sockets
from bireme.net.descriptors import claim
from bireme.net.frames import Decoder, Received, frame
from bireme.net.grpc_options import server_options
from bireme.pserver.shell.saver import folder_fault
from tests.support.carriers import KEY, LIFE, Mirror, running
from tests.support.frames import begin_frame

PULL = m.Pull(trainer=0, incarnation=1, sequence=1, step=0, names=("w",), answer=True)


@contextlib.contextmanager
def limited(**values: Any) -> Iterator[None]:
    with flags.restored():
        flags.set_flags(values)
        yield


def test_a_frame_larger_than_its_limit_gets_no_memory() -> None:
    parts = frame(m.Accepted(), {"w": np.zeros(400_000, np.float32)})
    with limited(rpc_frame_mb=1), pytest.raises(FormatError, match="FLAGS_rpc_frame_mb"):
        begin_frame(bytes(parts[0]))
    with limited(rpc_frame_mb=2):
        assert isinstance(begin_frame(bytes(parts[0])), memoryview)


def test_a_header_larger_than_its_limit_is_refused_by_its_length() -> None:
    head = frame(m.Pull(**_counted(), names=tuple(f"name{i}" for i in range(500))))[0]
    with limited(rpc_header_kb=1), pytest.raises(FormatError, match="FLAGS_rpc_header_kb"):
        begin_frame(bytes(head))
    assert isinstance(begin_frame(bytes(head)), Received)


def _counted() -> dict[str, Any]:
    return {"trainer": 0, "incarnation": 1, "sequence": 1, "step": 0}


def test_a_message_over_grpc_is_limited_unless_fluid_s_are_wanted() -> None:
    with limited(rpc_header_kb=1024):
        found = dict(server_options(5.0))
        assert found["grpc.max_receive_message_length"] == 3 << 20
    with limited(rpc_calls_per_connection=7, rpc_fluid=True):
        found = dict(server_options(5.0))
        assert found["grpc.max_concurrent_streams"] == 7
        assert found["grpc.server_handshake_timeout_ms"] == 5000
        assert 0 < found["grpc.max_allowed_incoming_connections"] < 1 << 16
        assert found["grpc.max_receive_message_length"] == -1


def test_a_listener_may_hold_as_many_descriptors_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        found = claim()
        assert lower <= found == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert hard == resource.RLIM_INFINITY or found >= min(hard, 1 << 16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.wire
@pytest.mark.parametrize("kind", [m.UnixSocket, m.TcpPort])
def test_one_peer_holds_so_many_connections_and_others_still_get_in(kind: type) -> None:
    with running(Mirror()) as server, limited(rpc_connections_per_peer=3):
        (offer,) = [one for one in server.offers if isinstance(one, kind)]
        with contextlib.ExitStack() as held:
            for _ in range(3):
                held.enter_context(dial(offer, KEY))
            with dial(offer, b"") as more, pytest.raises(OSError):  # noqa: PT011  # reset, or ended
                sockets.greet(more, KEY, LIFE, 5.0)
        other = server.open("grpc")
        exchange = other.exchange(5.0)
        exchange.write(frame(PULL))
        exchange.end()
        assert exchange.receive(Decoder()).message == m.Values(version=5)
        other.close()


@pytest.mark.wire
@pytest.mark.parametrize("kind", [m.UnixSocket, m.TcpPort])
def test_a_newcomer_takes_the_place_of_the_stranger_that_came_first(kind: type) -> None:
    with running(Mirror()) as server, limited(rpc_connections_per_peer=3):
        (offer,) = [one for one in server.offers if isinstance(one, kind)]
        with contextlib.ExitStack() as held:
            member, first, second = (
                held.enter_context(dial(offer, KEY if known else b"")) for known in (1, 0, 0)
            )
            with dial(offer, KEY):
                assert first.recv(1) == b""
                with dial(offer, KEY):
                    assert second.recv(1) == b""
                    with dial(offer, b"") as late:
                        assert late.recv(1) == b""
            member.sendall(b"".join(frame(PULL)))
            assert member.recv(1)


def dial(offer: m.Offer, key: bytes) -> socket.socket:
    """A connection, which has been greeted if there is a key."""
    if isinstance(offer, m.UnixSocket):
        made = sockets.connect_unix(offer.name, 5.0)
    else:
        made = sockets.connect_tcp(f"127.0.0.1:{offer.port}", 5.0)
    if key:
        sockets.greet(made, key, LIFE, 5.0)
    return made


@pytest.mark.wire
def test_a_stranger_s_connection_costs_less_than_a_kibibyte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    read = socket_server._Channel._readable

    def readable(self: socket_server._Channel) -> None:
        seen.append(len(self._ahead) + len(self._target))
        read(self)

    monkeypatch.setattr(socket_server._Channel, "_readable", readable)
    with running(Mirror()) as server:
        with pytest.raises(AssertionError):
            server.open("unix", key=b"?" * 16)
        assert max(seen) <= 1024
        server.open("unix").close()  # and who is known reads more at a time


@pytest.mark.wire
@pytest.mark.parametrize("kind", [m.UnixSocket, m.TcpPort])
def test_a_stranger_that_left_is_forgotten_at_once(kind: type) -> None:
    gc.disable()
    try:
        with running(Mirror()) as server:
            (offer,) = [one for one in server.offers if isinstance(one, kind)]
            for key in (b"", b"", b"?" * sockets.KEY):
                with dial(offer, b"") as stranger:
                    stranger.sendall(sockets.greeting(key) if key else b"BIR")
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
            found = [one for one in gc.get_objects() if isinstance(one, socket_server._Channel)]
            assert len(found) <= 1  # its last callback may still be returning
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "folder", ["/etc", "{root}", "{root}/../other/step-1", "{root}-2/step-1", "", "\0", "x" * 9000]
)
def test_a_server_writes_only_below_its_own_folder(tmp_path: Path, folder: str) -> None:
    root = tmp_path / "kept"
    with limited(checkpoint_dir=str(root)):
        assert "only below its own FLAGS_checkpoint_dir" in folder_fault(folder.format(root=root))
        assert not folder_fault(f"{root}/step-1")
    with limited(checkpoint_dir=""):
        assert "not set" in folder_fault(f"{root}/step-1")


@pytest.mark.parametrize(
    "folder",
    ["s3://b/other/step-1", "s3://b/kept/../step-1", "s3://b/kept-2/step-1", "/s3://b/kept/x"],
)
def test_a_server_writes_only_below_its_own_prefix(folder: str) -> None:
    with limited(checkpoint_dir="s3://b/kept"):
        assert folder_fault(folder)
        assert not folder_fault("s3://b/kept/step-1")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "out").symlink_to(tmp_path)
    with limited(checkpoint_dir=str(tmp_path / "kept")):
        assert folder_fault(str(tmp_path / "kept" / "out" / "step-1"))
