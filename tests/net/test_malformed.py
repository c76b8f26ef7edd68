"""Messages that are no messages: each is refused with an error of ours, takes up no memory that
lasts, and the next valid call works.
"""

import contextlib
import random
import socket
import tracemalloc
import zlib
from collections.abc import Callable

import grpc
import msgspec
import numpy as np
import pytest

from bireme.collective import membership
from bireme.collective.register import read_request
from bireme.errors import BiremeError, FormatError
from bireme.net import messages as m
from bireme.net import sockets
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.frames import HEAD, Decoder, decode, frame, rest_of_head
from tests.support.carriers import KEY, LIFE, Mirror, Running, running

NUMBERED = {"trainer": 0, "incarnation": 1, "sequence": 1, "step": 0}
FRAMES = [
    b"".join(map(bytes, parts))
    for parts in (
        frame(m.Hello(trainer=0, incarnation=1, segment="1:2:3:4")),
        frame(m.Push(**NUMBERED), {"w": np.ones((3, 4), np.float32), "b": np.ones(5)}),
        frame(m.Pull(**NUMBERED, names=("w", "b"), answer=True)),
        frame(m.Save(**NUMBERED, folder="/tmp/x", parts=("server-0",))),
        frame(m.Abort(trainer=0, incarnation=1, step=3, cause="why")),
    )
]
FLUID = [
    encode_variable(Variable(name="w", value=np.ones((3, 4), np.float32))),
    encode_variable(Variable(name="BATCH_BARRIER@RECV", trainer=1)),
]
REGISTER = [
    msgspec.msgpack.encode(membership.Report(1, 0, "lost")),
    msgspec.msgpack.encode(membership.Beat(1)),
]
COUNT = 10_000  # of frames; half as many of each other kind


def damaged(valid: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, cut, repeated or made up."""
    data = bytearray(valid)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << dice.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = dice.randbytes(dice.randint(1, 20))
            case 3:
                data[at : at + 8] = b"\xff" * 8
            case _:
                data[at:at] = data[at : at + dice.randint(1, 40)]
    return bytes(data)


def resealed(data: bytes) -> bytes:
    """The same with a right checksum, so that what lies behind it is tried, too."""
    if len(data) < HEAD:
        return data
    sizes = sum(int.from_bytes(data[i : i + 4], "little") for i in (4, 8))
    crc = zlib.crc32(data[HEAD : HEAD + min(sizes, len(data))])
    return data[:12] + crc.to_bytes(4, "little") + data[HEAD:]


def read_frame(data: bytes) -> None:
    """As a stream reads it: the lengths first."""
    if len(data) >= HEAD and HEAD + rest_of_head(data[:HEAD]) <= len(data):
        decode([data])
    else:
        raise FormatError("it ends early")


READERS: dict[str, tuple[Callable[[bytes], object], list[bytes]]] = {
    "frames": (read_frame, FRAMES),
    "Fluid's messages": (decode_variable, FLUID),
    "requests to rank 0": (read_request, REGISTER),
}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_messages_are_refused_and_leave_nothing_behind(kind: str) -> None:
    read, valid = READERS[kind]
    dice = random.Random(kind)
    count = COUNT if kind == "frames" else COUNT // 2
    refused = 0

    def try_all(number: int) -> None:
        nonlocal refused
        for i in range(number):
            data = damaged(dice.choice(valid), dice)
            try:
                read(resealed(data) if kind == "frames" and i % 2 else data)
            except BiremeError:
                refused += 1

    try_all(count // 10)  # caches fill
    tracemalloc.start()
    try:
        try_all(count - count // 10)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > count // 4
    assert kept < 4 << 20
    assert peak < 32 << 20
    for data in valid:
        read(data)


def test_a_frame_that_announces_more_than_it_brings_gets_no_memory() -> None:
    """Names and lengths are believed by nobody: 1000 frames of a terabyte each."""
    parts = frame(m.Push(**NUMBERED), {"w": np.ones(4, np.float32)})
    tensor = m.Tensor("w", "float32", (1 << 38,))
    described = msgspec.msgpack.encode((tensor,))
    header = bytes(parts[0])[HEAD : HEAD + int.from_bytes(bytes(parts[0])[4:8], "little")]
    head = bytes(parts[0])[:8] + len(described).to_bytes(4, "little") + bytes(4)
    data = resealed(head + header + described)
    tracemalloc.start()
    try:
        for _ in range(1000):
            with pytest.raises(FormatError, match="FLAGS_rpc_frame_mb"):
                Decoder().announce(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.wire
@pytest.mark.parametrize("kind", ["unix", "tcp", "grpc"])
def test_live_connections_survive_noise_before_and_after_the_greeting(kind: str) -> None:
    dice = random.Random(kind)
    with running(Mirror()) as server:
        for i in range(60):
            noise = damaged(dice.choice([*FRAMES, sockets.greeting(KEY)]), dice)
            with contextlib.suppress(OSError, grpc.RpcError):
                if kind == "grpc":
                    with grpc.insecure_channel(server.endpoint) as channel:
                        channel.unary_unary("/bireme.Server/Call")(noise, timeout=5.0)
                    continue
                with dial(server, kind) as made:
                    if i % 2:
                        sockets.greet(made, KEY, LIFE, 5.0)
                    made.sendall(noise)
                    made.shutdown(socket.SHUT_WR)
                    while made.recv(4096):
                        pass
        carrier = server.open(kind)
        exchange = carrier.exchange(5.0)
        exchange.write(frame(m.Pull(**NUMBERED, names=("w",), answer=True)))
        exchange.end()
        assert exchange.receive(Decoder()).message == m.Values(version=5)
        carrier.close()


def dial(server: Running, kind: str) -> socket.socket:
    wanted = {"unix": m.UnixSocket, "tcp": m.TcpPort}[kind]
    (offer,) = [one for one in server.offers if isinstance(one, wanted)]
    if kind == "unix":
        return sockets.connect_unix(offer.name, 5.0)
    return sockets.connect_tcp(f"127.0.0.1:{offer.port}", 5.0)
