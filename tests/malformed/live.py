"""Damaged bytes on every way into living processes, from strangers and from members.

A stranger has no token and no key: it is refused, and neither changes nor learns anything. A member
may be believed; the process stays, and the next valid call works. A server whose job a member's
message has ended in order (a valid Abort, say) is started again.
"""

import contextlib
import http.client
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
import msgspec

from bireme import flags
from bireme.collective import membership
from bireme.collective.connections import Listener, Purpose, connect
from bireme.errors import BiremeError
from bireme.job_token import TOKEN
from bireme.monitoring.admin_server import Admin
from bireme.net import messages as m
from bireme.net import sockets
from bireme.net.frames import decode, encode
from bireme.net.grpc_options import CALL, EXCHANGE
from tests.support.live_server import LiveServer

from .hunting import resident
from .kinds import REQUESTS, packed_tree, resealed_frame
from .mutations import bytes_damaged, fields_damaged
from .served import CALLS, EXCHANGES, FLUID_CALLS, SAVES

__all__ = ["WAYS", "Outcome", "attack"]

OURS = "0123456789abcdef" * 2
SHOWN = (("bireme-job-token", OURS),)
SECONDS = 10.0
BRIEF = 0.1  # for a member's call that waits for others
GROWTH = 128 << 20  # bytes that this process may grow by, clients and servers
MOST_FAULTS = 5  # then the attack on this way ends
Dice = random.Random
Damage = Callable[[bytes, Dice], bytes]
HTTP = [
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer no\r\n\r\n",
    b"GET /trace?seconds=1 HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
]


@dataclass
class Outcome:
    """What came of an attack."""

    tried: int = 0
    refused: int = 0
    begun_anew: int = 0
    grown: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.tried:7d} tried, {self.refused:7d} refused, {self.begun_anew:4d} begun anew"
        text += f", grown {self.grown >> 10:6d} KiB, {self.seconds:6.1f} s"
        return "\n    ".join([text, *self.faults])


@dataclass
class Way:
    """One way in: `send` says whether the bytes were refused."""

    valid: list[bytes]
    damages: tuple[Damage, ...]
    send: Callable[[bytes], bool]
    works: Callable[[], bool]  # a member's valid call
    ended: Callable[[], bool] = lambda: False  # whether the job is over; may wait a little


def attack(way: str, count: int, seed: int) -> Outcome:
    """Send `count` damaged inputs; after every hundredth a valid call must work."""
    found, dice = Outcome(), random.Random(seed)
    before, began = resident(), time.monotonic()
    os.environ[TOKEN] = OURS
    try:
        while found.tried < count and len(found.faults) < MOST_FAULTS:
            with WAYS[way]() as opened:
                _batch(opened, count, dice, found)
                found.begun_anew += found.tried < count
    finally:
        del os.environ[TOKEN]
    found.seconds, found.grown = time.monotonic() - began, max(0, resident() - before)
    if found.grown > GROWTH:
        found.faults.append(f"grown by {found.grown >> 20} MiB")
    return found


def _batch(way: Way, count: int, dice: Dice, found: Outcome) -> None:
    while found.tried < count and len(found.faults) < MOST_FAULTS:
        data = dice.choice(way.damages)(dice.choice(way.valid), dice)
        found.tried += 1
        try:
            found.refused += way.send(data)
        except Exception as error:
            if way.ended():
                return
            found.faults.append(f"{type(error).__name__}: {str(error)[:200]} by {data[:100]!r}")
        if (found.tried % 100 == 0 or found.tried == count) and not _works(way):
            if way.ended():
                return
            found.faults.append(f"no valid call after {data[:100]!r}")


def _works(way: Way) -> bool:
    try:
        return way.works()
    except (OSError, grpc.RpcError, BiremeError):
        return False


# -- gRPC --------------------------------------------------------------------------------------
@contextlib.contextmanager
def served() -> Iterator[LiveServer]:
    live = LiveServer()
    try:
        yield live
    finally:
        live.close()


@contextlib.contextmanager
def over_grpc(path: str, valid: list[bytes], damages: tuple[Damage, ...], member: bool) -> Any:
    with served() as live:
        to_register = path.startswith("/bireme.Register")
        endpoint = f"127.0.0.1:{live.register.port}" if to_register else live.endpoint
        with grpc.insecure_channel(endpoint) as channel:
            ask = _asker(channel, path)
            send = partial(_by_member if member else _by_stranger, ask)
            state = partial(_greets, live.endpoint)
            if member:
                state()
            works = state if member else lambda: _is_untouched(live) and state()
            yield Way(valid, damages, send, works, partial(_has_ended, live))


def _has_ended(live: LiveServer) -> bool:
    live._thread.join(0.5)
    return not live._thread.is_alive()


def _asker(channel: Any, path: str) -> Callable[..., list[bytes]]:
    if path != EXCHANGE:
        unary = channel.unary_unary(path)
        return lambda data, **how: [unary(data, **how)]
    stream = channel.stream_stream(path)
    return lambda data, **how: list(stream(iter([data]), **how))


def _by_stranger(ask: Callable[..., list[bytes]], data: bytes) -> bool:
    try:
        ask(data, timeout=SECONDS)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            return True
        raise
    raise AssertionError("a stranger was answered")


def _by_member(ask: Callable[..., list[bytes]], data: bytes) -> bool:
    try:
        answers = ask(data, timeout=BRIEF, metadata=SHOWN)
    except grpc.RpcError as error:
        if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return True
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return False  # it waits for what comes before it
        raise
    return any(_is_refusal(answer) for answer in answers)


def _is_refusal(answer: bytes) -> bool:
    """Whether one of the frames of an answer refuses; none may speak of an error that is not
    ours.
    """
    if b"bad frame: " in answer:
        raise AssertionError(answer[:200])
    return b"Refused" in answer


def _greets(endpoint: str) -> bool:
    """Whether a greeting is answered: by a welcome, or because another life of the trainer was."""
    return isinstance(_hello(endpoint), m.Welcome | m.Refused)


def _hello(endpoint: str) -> Any:
    with grpc.insecure_channel(endpoint) as channel:
        hello = encode(m.Hello(trainer=0, incarnation=1))
        answer = channel.unary_unary(CALL)(hello, timeout=SECONDS, metadata=SHOWN)
    return decode([answer]).message


def _is_untouched(live: LiveServer) -> bool:
    metrics = live.service.metrics
    unseen = not live.said and metrics.received == metrics.sent == 0
    return unseen and live.updates.value("w").tolist() == [0.0] * 4


# -- sockets -----------------------------------------------------------------------------------
@contextlib.contextmanager
def over_socket(kind: type, member: bool) -> Any:
    with served() as live:
        (offer,) = [one for one in live.service.carriers if isinstance(one, kind)]

        def dial() -> socket.socket:
            if isinstance(offer, m.UnixSocket):
                return sockets.connect_unix(offer.name, SECONDS)
            return sockets.connect_tcp(f"127.0.0.1:{offer.port}", SECONDS)

        welcome = _hello(live.endpoint)
        state = partial(_greets, live.endpoint)

        def send(data: bytes) -> bool:
            with dial() as made:
                if member:
                    sockets.greet(made, welcome.key, live.service.incarnation, SECONDS)
                    made.settimeout(BRIEF)
                return _said(made, data, member)

        valid = [*EXCHANGES, *SAVES, *CALLS]
        if not member:
            valid = [sockets.greeting(b"?" * sockets.KEY) + each for each in valid]
        damages: tuple[Damage, ...] = (resealed_frame,) if member else (bytes_damaged,)
        works = state if member else lambda: _is_untouched(live) and state()
        yield Way(valid, damages, send, works, partial(_has_ended, live))


def _said(made: socket.socket, data: bytes, member: bool) -> bool:
    """Whether these bytes are refused, or the connection is ended over them."""
    answer = b""
    try:
        made.sendall(data)
        made.shutdown(socket.SHUT_WR)
        while part := made.recv(1 << 16):
            answer += part
    except TimeoutError:
        if member:
            return False  # it waits for what comes before it
        raise
    except OSError:
        return True
    if not member and answer and not _is_refusal(answer):
        raise AssertionError(f"a stranger was told {answer[:50]!r}")
    return not answer or _is_refusal(answer)


# -- links between ranks -----------------------------------------------------------------------
@contextlib.contextmanager
def over_link(unix: bool, member: bool) -> Any:
    listener, key = Listener("127.0.0.1:0"), sockets.new_key()
    listener.open(key)
    address = listener.address
    number = iter(range(1 << 30))

    def send(data: bytes) -> bool:
        where = sockets.connect_unix if unix else sockets.connect_tcp
        with where(address.unix if unix else address.tcp, SECONDS) as made:
            if member:
                sockets.greet(made, key, address.life, SECONDS)
                made.sendall(data)
                return False
            return _said(made, data, False)

    def works() -> bool:
        purpose = Purpose("world", 1, f"channel {next(number)}")
        until = time.monotonic() + SECONDS
        with connect(address, key, purpose, "rank 0", until):
            listener.take(purpose, until, lambda: None).close()
        return True

    def ended() -> bool:
        """A member that has opened many that nobody takes gets no more."""
        return len(listener._ready) >= int(flags.get("rpc_connections_per_peer")) // 2

    greeting = sockets.greeting(b"?" * sockets.KEY) + b"x" * 20
    valid = [Purpose("world", 1, "ring").encode()] if member else [greeting]
    try:
        yield Way(valid, (bytes_damaged,), send, works, ended)
    finally:
        listener.close()


# -- the admin port ----------------------------------------------------------------------------
@contextlib.contextmanager
def over_http() -> Any:
    admin = Admin("0.0.0.0", 0)
    port = int(admin.endpoint.rpartition(":")[2])

    def send(data: bytes) -> bool:
        answer = b""
        with (
            contextlib.suppress(ConnectionError),
            sockets.connect_tcp(f"127.0.0.1:{port}", 5.0) as made,
        ):
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            while part := made.recv(1 << 16):
                answer += part
        if b"bireme_" in answer or b'"role"' in answer:
            raise AssertionError(f"a stranger was told {answer[:200]!r}")
        return True

    def works() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz", headers={"Authorization": f"Bearer {OURS}"})
            return connection.getresponse().status == 200

    try:
        yield Way(HTTP, (bytes_damaged,), send, works)
    finally:
        admin.close()


def _requests(data: bytes, dice: Dice) -> bytes:
    """Damaged so that rank 0 is not told of a death by it."""
    made = packed_tree(data, dice) if dice.random() < 0.7 else bytes_damaged(data, dice)
    try:
        said = msgspec.msgpack.decode(made, type=membership.Request)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return made
    return b"\xc1" if isinstance(said, membership.Report) else made


_FRAMES, _FIELDS = (resealed_frame,), (fields_damaged, bytes_damaged)
_METHODS = ("SendVariable", "GetVariable", "GetVariableNoBarrier", "PrefetchVariable",
            "CheckpointNotify", "DistributeNotify")  # fmt: skip
_FLUID = "/sendrecv.SendRecvService/"
_ASK = "/bireme.Register/Ask"
WAYS: dict[str, Callable[[], Any]] = {}
for _member, _who in ((False, "stranger"), (True, "member")):
    _more = {
        "gRPC calls": partial(over_grpc, CALL, CALLS, _FRAMES, _member),
        "gRPC exchanges": partial(over_grpc, EXCHANGE, [*EXCHANGES, *SAVES], _FRAMES, _member),
        "Unix socket": partial(over_socket, m.UnixSocket, _member),
        "TCP port": partial(over_socket, m.TcpPort, _member),
        "register": partial(over_grpc, _ASK, REQUESTS, (_requests,), _member),
        "link by Unix socket": partial(over_link, True, _member),
        "link by TCP": partial(over_link, False, _member),
        **{
            f"Fluid's {method}": partial(over_grpc, _FLUID + method, FLUID_CALLS, _FIELDS, _member)
            for method in _METHODS
        },
    }
    WAYS |= {f"{_who}: {name}": made for name, made in _more.items()}
WAYS["stranger: admin port"] = over_http
