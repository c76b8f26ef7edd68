"""TLS both ways: members talk, and whoever shows no certificate of the job's authority does not."""

import contextlib
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme

from bireme import flags
from bireme.collective import membership
from bireme.collective.connections import Address, Listener, Purpose, connect
from bireme.collective.register import OwnRegister, RemoteRegister
from bireme.errors import BiremeError, ConfigError, PeerLost, ProtocolError
from bireme.fleet.certs import write_certificates
from bireme.net import messages as m
from bireme.net import sockets, tls
from bireme.net.carriers import Unreachable
from bireme.net.frames import Decoder, frame
from bireme.net.grpc_client import GrpcEndpoint
from bireme.net.tls_sockets import TlsSocket, secured
from tests.support.carriers import KEY, LIFE, Mirror, Running, running

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
        with pytest.raises(OSError) as caught:  # noqa: PT011  # reset, or ended
            greets(server, context)
        assert not isinstance(caught.value, TimeoutError)
    register.close()


def greets(server: Running, context: ssl.SSLContext | None) -> None:
    """Greet at the TCP port with the right key, and with the certificate of `context`."""
    made = socket.create_connection(("127.0.0.1", port_of(server)), 5.0)
    made = made if context is None else secured(made, context, "bireme", 5.0)
    with made:
        sockets.greet(made, KEY, LIFE, 5.0)


def port_of(server: Running) -> int:
    (port,) = [offer.port for offer in server.offers if isinstance(offer, m.TcpPort)]
    return port


@pytest.mark.wire
def test_a_server_of_another_authority_is_not_greeted(folders: dict[str, Path]) -> None:
    with showing(folders["ours"]):
        context = tls.context(server=False)
    with (
        showing(folders["theirs"]),
        running(Mirror()) as server,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        greets(server, context)


@pytest.mark.wire
def test_nothing_is_sent_to_a_server_that_shows_no_certificate(member: None) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening:
        with pytest.raises(TimeoutError, match="handshake"):
            sockets.connect_tcp(f"127.0.0.1:{listening.getsockname()[1]}", 0.1)
        with listening.accept()[0] as accepted:
            sent = b"".join(iter(lambda: accepted.recv(1 << 16), b""))
    assert sent[:1] == b"\x16"  # a handshake, and nothing after it
    assert int.from_bytes(sent[3:5], "big") == len(sent) - 5


@contextlib.contextmanager
def tcp_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialled = socket.create_connection(listening.getsockname(), 5.0)
        accepted = listening.accept()[0]
    with dialled, accepted:
        yield dialled, accepted


HALF = b"\x16\x03\x01\x02\0\x01\0\x01\xfc"


@pytest.mark.wire
def test_half_a_handshake_holds_no_thread_and_no_descriptor(member: None) -> None:
    with tcp_pair() as (dialled, accepted):
        dialled.sendall(HALF)
        handshake = sockets.handshake(accepted)
        before = threading.active_count(), len(os.listdir("/proc/self/fd"))
        assert handshake is not None
        assert handshake.step() is None
        assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before
        dialled.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            handshake.step()


@pytest.mark.wire
@pytest.mark.parametrize("sent", [b"", HALF])
def test_half_a_handshake_is_ended_on_every_port(
    member: None, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(sockets, "GREETING_SECONDS", 0.2)
    listener = Listener("127.0.0.1:0")
    listener.open(KEY)
    with contextlib.closing(listener), running(Mirror()) as server:
        of_grpc, of_rank = (e.rpartition(":")[2] for e in (server.endpoint, listener.address.tcp))
        for port in (port_of(server), int(of_grpc), int(of_rank)):
            with socket.create_connection(("127.0.0.1", port), 5.0) as stranger:
                stranger.sendall(sent)
                while stranger.recv(4096):
                    pass
    assert "tls" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.wire
def test_ranks_with_certificates_connect(member: None) -> None:
    purpose = Purpose("world", 1, "collective")
    listener = Listener("127.0.0.1:0")
    listener.open(KEY)
    address = Address("elsewhere", "", listener.address.tcp, listener.address.life)
    soon = time.monotonic() + 5
    with (
        contextlib.closing(listener),
        connect(address, KEY, purpose, "rank 0", soon) as sent,
        listener.take(purpose, soon, lambda: None) as taken,
    ):
        sent.sendall(b"hello")
        taken.settimeout(5.0)
        assert taken.recv(5) == b"hello"


@pytest.mark.wire
def test_a_connection_is_its_far_end_s_and_of_no_process_here(member: None) -> None:
    with running(Mirror()) as server:
        made = sockets.connect_tcp(f"127.0.0.1:{port_of(server)}", 5.0)
        with made:
            assert isinstance(made, TlsSocket)
            assert sockets.peer_of(made) == "127.0.0.1"
            assert sockets.process_of(made) == 0


# -- the name ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificates of one authority with different names."""
    authority = trustme.CA()
    made = {name: tmp_path_factory.mktemp(name) for name in ("bireme", "other")}
    for name, folder in made.items():
        issued = authority.issue_cert(name)
        authority.cert_pem.write_to_path(folder / "ca.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return made


@pytest.mark.wire
def test_a_certificate_for_something_else_opens_no_way_in(named: dict[str, Path]) -> None:
    with showing(named["other"]):
        context = tls.context(server=False)
    with showing(named["bireme"]), running(Mirror()) as server:
        register = OwnRegister("127.0.0.1:0", RANKS, 5.0)
        with showing(named["other"]):
            wire = GrpcEndpoint(server.endpoint, 5.0)
            client = RemoteRegister(f"127.0.0.1:{register.port}", 5.0)
        with (
            contextlib.closing(register),
            contextlib.closing(client),
            pytest.raises(ProtocolError, match="does not bear the name 'bireme'"),
        ):
            client.ask(membership.Beat(1), 5.0)
        with contextlib.closing(wire):
            with pytest.raises(ProtocolError, match="does not bear the name 'bireme'"):
                wire.call(b"hello", 5.0)
            exchange = wire.exchange(5.0)
            exchange.write(frame(m.Pull(**NUMBERED, sequence=1, names=("w",), answer=True)))
            exchange.end()
            with pytest.raises(ProtocolError, match="does not bear the name 'bireme'"):
                exchange.receive(Decoder())
        with pytest.raises(OSError) as caught:  # noqa: PT011  # reset, or ended
            greets(server, context)
        assert not isinstance(caught.value, TimeoutError)
        greets(server, tls.context(server=False))


@pytest.mark.parametrize(
    ("names", "common", "wanted", "borne"),
    [
        (["bireme"], "", "bireme", True),
        (["other", "Bireme"], "", "bireme", True),
        (["other"], "bireme", "bireme", False),
        ([], "bireme", "bireme", True),
        ([], "", "bireme", False),
        (["*.jobs"], "", "a.jobs", True),
        (["*.jobs"], "", "a.b.jobs", False),
        (["*."], "", "bireme", False),
        (["*"], "", "bireme", False),
    ],
)
def test_which_certificates_bear_a_name(
    names: list[str], common: str, wanted: str, borne: bool
) -> None:
    assert tls.bears(names, common, wanted) is borne


def test_files_are_read_once(folders: dict[str, Path], tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").write_bytes((folders["ours"] / f"{name}.pem").read_bytes())
    with showing(tmp_path):
        found, context = tls.certificates(), tls.context(server=True)
        for path in tmp_path.iterdir():
            path.unlink()
        assert (tls.certificates(), tls.context(server=True)) == (found, context)


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
