"""What a client of the admin port may hold, and by which names it may know the port."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from bireme import flags
from bireme.monitoring import http_port
from bireme.monitoring.host_names import is_expected
from bireme.monitoring.http_port import TEXT, HttpPort, Page

pytestmark = pytest.mark.wire


class Book:
    """A page that is made at once, and one that takes until `ready`."""

    def __init__(self) -> None:
        self.begun, self.ready = threading.Semaphore(0), threading.Event()

    def page(self, path: str) -> Page:
        if path == "/slow":
            self.begun.release()
            assert self.ready.wait(5)
        return 200, TEXT, "a page\n"


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def port(book: Book, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_port, "CONNECTIONS", 3)
    monkeypatch.setattr(http_port, "LOOK", 0.05)
    made = HttpPort(("127.0.0.1", 0), book.page, "", lambda: None)
    yield made.server_address[1]
    book.ready.set()
    made.close()


def opened(port: int, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 5)
    made.sendall(sent)
    return made


def read(port: int, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nX-Slow: ", b"?" * 10_000])
def test_slow_clients_do_not_keep_others_out(port: int, sent: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(7):
            held.enter_context(opened(port, sent))
        assert read(port) == (200, "a page\n")


def test_the_client_that_has_waited_longest_is_ended_for_the_next(port: int) -> None:
    with contextlib.ExitStack() as held:
        first, second, _, _ = (held.enter_context(opened(port)) for _ in range(4))
        assert first.recv(1) == b""
        with opened(port):
            assert second.recv(1) == b""


def test_pages_being_made_are_finished_and_more_are_refused(port: int, book: Book) -> None:
    asked = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with contextlib.ExitStack() as held:
        busy = [held.enter_context(opened(port, asked)) for _ in range(3)]
        for _ in busy:
            assert book.begun.acquire(timeout=5)
        with opened(port) as more:
            assert more.recv(1) == b""
        book.ready.set()
        for each in busy:
            assert each.recv(12) == b"HTTP/1.1 200"
        assert read(port)[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_connection_that_only_waits_is_ended(
    port: int, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_port, "SECONDS", 0.1)
    with opened(port, sent) as silent:
        while silent.recv(4096):
            pass


def test_an_answer_that_is_not_taken_is_given_up(
    book: Book, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    finish = http_port._Handler.finish

    def finished(self: http_port._Handler) -> None:
        ended.set()
        finish(self)

    monkeypatch.setattr(http_port._Handler, "finish", finished)
    monkeypatch.setattr(http_port, "SECONDS", 0.1)
    monkeypatch.setattr(book, "page", lambda path: (200, TEXT, "x" * (64 << 20)))
    made = HttpPort(("127.0.0.1", 0), book.page, "", lambda: None)
    with contextlib.closing(made), opened(made.server_address[1], b"GET / HTTP/1.1\r\n\r\n"):
        assert ended.wait(5)


# -- names -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LocalHost.", "job.localhost:1", "127.0.0.1:8000", "10.1.2.3",
     "[::1]:8000", "[fe80::1%25eth0]", ""],
)  # fmt: skip
def test_addresses_and_localhost_are_names_of_ours(host: str) -> None:
    assert is_expected(host)


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:8000", "127.0.0.1.attacker.example",
             "localhosts", "[attacker]:1", "xlocalhost:1"],
)  # fmt: skip
def test_other_names_are_not(host: str) -> None:
    assert not is_expected(host)
    with flags.restored():
        flags.set_flags({"admin_names": f"other, {host.partition(':')[0].strip('[]').upper()}"})
        assert is_expected(host)


def test_a_page_is_not_read_by_another_name(port: int) -> None:
    code, text = read(port, Host="attacker.example:8000")
    assert (code, "FLAGS_admin_names" in text) == (403, True)
    assert read(port, Host="localhost:8000")[0] == 200


def test_who_shows_the_token_may_use_any_name(book: Book) -> None:
    made = HttpPort(("127.0.0.1", 0), book.page, "secret", lambda: None)
    with contextlib.closing(made):
        number = made.server_address[1]
        assert read(number, Host="trainer-0.jobs", Authorization="Bearer secret")[0] == 200
        assert read(number, Host="trainer-0.jobs")[0] == 401
