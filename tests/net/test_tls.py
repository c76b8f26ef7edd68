"""TLS both ways: members talk, and whoever shows no certificate of the job's authority does not."""

import contextlib
import hashlib
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bireme import flags
from bireme.collective import membership
from bireme.collective.register import OwnRegister, RemoteRegister
from bireme.errors import BiremeError, ConfigError, PeerLost
from bireme.fleet.certs import write_certificates
from bireme.net import messages as m
from bireme.net import sockets, tls
from bireme.net.carriers import Unreachable
from bireme.net.frames import Decoder, frame
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.tls_sockets import TlsSocket, secured
from tests.support.carriers import KEY, LIFE, Mirror, running

RANKS = membership.Register(size=2, terms="", silence=60, token="secret")
NUMBERED = {"trainer": 0, "incarnation": 1, "step": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates of two authorities."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("ours", "theirs")}
    for folder in made.values():
        list(write_certificates(folder))
    return made


@pytest.fixture
def member(folders: dict[str, Path]) -> Iterator[None]:
    with showing(folders["ours"]):
        yield


@contextlib.contextmanager
def showing(folder: Path | None) -> Iterator[None]:
    """This process has the certificates of `folder`."""
    names = ("ca", "cert", "key")
    shown = {f"tls_{n}": "" if folder is None else str(folder / f"{n}.pem") for n in names}
    with flags.restored():
        flags.set_flags(shown)
        yield


@pytest.mark.wire
@pytest.mark.parametrize("kind", ["tcp", "grpc"])
@pytest.mark.parametrize("size", [1, 1000, 3_000_000])
def test_members_exchange_values_of_every_size(member: None, kind: str, size: int) -> None:
    values = {"w": np.random.RandomState(1).rand(size).astype(np.float32)}
    with running(Mirror()) as server:
        carrier = server.open(kind)
        for _ in range(2):
            exchange = carrier.exchange(20.0)
            exchange.write(frame(m.Push(**NUMBERED, sequence=1), values))
            exchange.write(frame(m.Pull(**NUMBERED, sequence=2, names=("w",), answer=True)))
            exchange.end()
            found = exchange.receive(Decoder()).values["w"]
            assert np.array_equal(found, values["w"])
        carrier.close()


@pytest.mark.wire
@pytest.mark.parametrize("shown", ["nothing", "theirs"])
def test_a_stranger_is_answered_on_no_way_in(
    member: None, folders: dict[str, Path], shown: str
) -> None:
    register = OwnRegister("127.0.0.1:0", RANKS, 5.0)
    with running(Mirror()) as server:
        with showing(folders.get(shown)):
            context = tls.context(server=False)
            wire = GrpcEndpoint(server.endpoint, 5.0)
            with contextlib.closing(wire), pytest.raises(Unreachable):
                wire.call(b"hello", 5.0)
            client = RemoteRegister(f"127.0.0.1:{register.port}", 5.0)
            with contextlib.closing(client), pytest.raises(PeerLost):
                client.ask(membership.Beat(1), 5.0)
        (port,) = [o.port for o in server.offers if isinstance(o, m.TcpPort)]
        made = socket.create_connection(("127.0.0.1", port), 5.0)
        made = made if context is None else secured(made, context, "bireme")
        with made, pytest.raises(OSError) as caught:  # noqa: PT011  # reset, or ended
            sockets.greet(made, KEY, LIFE, 5.0)
        assert not isinstance(caught.value, TimeoutError)
    register.close()


@pytest.mark.wire
def test_a_server_of_another_authority_is_not_greeted(
    member: None, folders: dict[str, Path]
) -> None:
    listening = sockets.bind("127.0.0.1:0")
    listening.listen()
    made = sockets.connect_tcp(f"127.0.0.1:{listening.getsockname()[1]}", 5.0)
    with listening, made, showing(folders["theirs"]):
        accepted = sockets.accept(listening)
        assert accepted is not None
        with accepted:
            accepted.settimeout(5.0)
            with pytest.raises(OSError):  # noqa: PT011  # reset, or ended
                sockets.greet(made, KEY, LIFE, 5.0)
            with contextlib.suppress(OSError):
                assert accepted.recv(100) == b""


@pytest.mark.wire
def test_nothing_leaves_before_the_peer_has_shown_its_certificate(member: None) -> None:
    words = hashlib.sha256(b"words").digest() * 100
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        dialled = sockets.connect_tcp(f"127.0.0.1:{listening.getsockname()[1]}", 5.0)
        dialled.sendall(words)
        accepted = listening.accept()[0]
        with dialled, accepted:
            accepted.settimeout(5.0)
            first = accepted.recv(1 << 16)
    assert first[:1] == b"\x16"  # a TLS handshake
    assert words[:32] not in first


@pytest.mark.wire
def test_connections_are_counted_by_the_far_end_s_address(member: None) -> None:
    listening = sockets.bind("127.0.0.1:0")
    listening.listen()
    with listening, sockets.connect_tcp(f"127.0.0.1:{listening.getsockname()[1]}", 5.0) as made:
        accepted = sockets.accept(listening)
        assert isinstance(accepted, TlsSocket)
        assert sockets.peer_of(accepted) == sockets.peer_of(made) == "127.0.0.1"
        accepted.close()
        made.settimeout(5.0)
        assert made.recv(1) == b""


def test_half_of_the_settings_is_an_error(folders: dict[str, Path]) -> None:
    with showing(None):
        flags.set_flags({"tls_cert": str(folders["ours"] / "cert.pem")})
        with pytest.raises(ConfigError, match="TLS needs FLAGS_tls_key and FLAGS_tls_ca"):
            tls.certificates()


def test_files_that_cannot_be_used_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with showing(tmp_path), pytest.raises(ConfigError, match="cannot read FLAGS_tls_cert"):
        tls.certificates()
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").write_text("noise")
    with showing(tmp_path):
        with pytest.raises(ConfigError, match="certificates cannot be used"):
            tls.context(server=True)
        with pytest.raises(BiremeError):
            OwnRegister("127.0.0.1:0", RANKS, 5.0)


def test_the_keys_of_made_certificates_are_for_their_owner_only(tmp_path: Path) -> None:
    lines = list(write_certificates(tmp_path / "new"))
    assert len(lines) == 3
    for line in lines:
        name, path = line.removeprefix("export ").split("=")
        assert name.startswith("FLAGS_tls_")
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
    context = ssl.create_default_context(cafile=str(tmp_path / "new" / "ca.pem"))
    assert context.cert_store_stats()["x509_ca"] == 1
