"""Every kind of input that another process or a file can bring: valid examples, how they are
damaged, and who reads them.
"""

import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import bireme as fluid
from bireme.arrays.values import LoDTensor, SelectedRows, lengths_to_lod
from bireme.collective import membership
from bireme.collective.register import read_answer, read_request
from bireme.errors import BiremeError, FormatError
from bireme.io.manifest import OtherFormat, Untrue, parsed
from bireme.io.streams import Reader, write_value
from bireme.io.write_ahead_log import LogReader
from bireme.ir.proto import from_bytes
from bireme.net import messages as m
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.frames import HEAD, Decoder, frame
from bireme.net.layouts import read_layout
from bireme.net.memory import Mappings, Segment
from bireme.net.records import packed as packed_record
from bireme.pserver.journal.records import (
    Begin,
    Gathered,
    Joined,
    Known,
    KnownTrainer,
    Left,
    Round,
    read_record,
    written_record,
)
from bireme.trainer.step_records import Recorded, read_recorded
from tests.support.frames import begin_frame

from .mutations import bytes_damaged, fields_damaged, tree_damaged
from .served import CALLS, EXCHANGES, FLUID_CALLS, SAVES, Served

__all__ = ["FRAMES", "KINDS", "NUMBERED", "RECORDS", "Kind", "kinds", "resealed_frame", "sealed"]

Dice = random.Random
Damage = Callable[[bytes, Dice], bytes]
ROWS = SelectedRows(np.array([3, 1, 3]), np.ones((3, 4), np.float32), 10)
LOD = LoDTensor(np.ones((3, 2), np.float32), lengths_to_lod([[1, 1], [2, 1]]))
SEGMENT = Segment(1 << 16)
MAPPED = Mappings()
NUMBERED = {"trainer": 0, "incarnation": 1, "sequence": 1, "step": 0}


@dataclass(frozen=True)
class Kind:
    """One kind: `read` takes bytes and raises one of `refusals`, or accepts them."""

    valid: Sequence[bytes]
    damages: Sequence[Damage]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = (BiremeError,)
    weight: int = 1  # of all inputs
    also: Sequence[bytes] = ()  # to be damaged, too, and refused as they are

    def inputs(self, count: int, dice: Dice) -> Iterator[bytes]:
        """`count` damaged ones."""
        for _ in range(count):
            chosen = dice.choice((*self.valid, *self.also))
            yield dice.choice(self.damages)(chosen, dice)


# -- frames ------------------------------------------------------------------------------------
def joined(parts: Sequence[Any]) -> bytes:
    return b"".join(map(bytes, parts))


FRAMES = [
    joined(parts)
    for parts in (
        frame(m.Hello(trainer=0, incarnation=1, segment="1:2:3:4")),
        frame(m.Push(**NUMBERED), {"w@GRAD": np.ones((3, 4), np.float32), "b": np.ones(5)}),
        frame(m.Push(**NUMBERED, answer=True), {"e@GRAD": ROWS, "l": LOD}),
        [frame(m.Push(**NUMBERED, place=(SEGMENT.name, 64)), {"w": np.ones(2)})[0]],
        frame(m.Barrier(**NUMBERED)),
        frame(m.Pull(**NUMBERED, names=("w", "b"), answer=True)),
        frame(m.Lookup(**NUMBERED), {"e": np.arange(3)}),
        frame(m.Share(**NUMBERED), {"mine": np.ones(2)}),
        frame(m.Save(**NUMBERED, folder="/tmp/x", parts=("server-0",))),
        frame(m.Heartbeat(trainer=0, incarnation=1, step=3)),
        frame(m.Complete(trainer=0, incarnation=1)),
        frame(m.Abort(trainer=0, incarnation=1, step=3, cause="why")),
        frame(m.Welcome(mode=0, incarnation=1, carriers=(m.TcpPort(1),), key=b"k")),
        frame(m.Values(version=3), {"w": np.ones(3)}),
        frame(m.Refused(kind="PeerLost", text="gone", peer="trainer 1", step=3)),
    )
]


def _cut_frame(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Header, description, payload."""
    length, described = (int.from_bytes(data[i : i + 4], "little") for i in (4, 8))
    return (
        data[HEAD : HEAD + length],
        data[HEAD + length : HEAD + length + described],
        data[HEAD + length + described :],
    )


def sealed(header: bytes, description: bytes, payload: bytes) -> bytes:
    sizes = len(header).to_bytes(4, "little") + len(description).to_bytes(4, "little")
    crc = zlib.crc32(header + description).to_bytes(4, "little")
    return b"BR\x03\0" + sizes + crc + header + description + payload


def frame_tree(data: bytes, dice: Dice) -> bytes:
    """Another message or description, rightly sealed."""
    header, description, payload = _cut_frame(data)
    if dice.random() < 0.5 or not description:
        header = packed(tree_damaged(msgspec.msgpack.decode(header), dice))
    if description and dice.random() < 0.7:
        description = packed(tree_damaged(msgspec.msgpack.decode(description), dice))
    if dice.random() < 0.2:
        payload = bytes_damaged(payload, dice)
    return sealed(header, description, payload)


def frame_bytes(data: bytes, dice: Dice) -> bytes:
    """Damaged bytes of the head, rightly sealed."""
    header, description, payload = _cut_frame(data)
    if dice.random() < 0.5 or not description:
        header = bytes_damaged(header, dice)
    else:
        description = bytes_damaged(description, dice)
    return sealed(header, description, payload)


def resealed_frame(data: bytes, dice: Dice) -> bytes:
    """Damaged in one of all ways."""
    return dice.choice((bytes_damaged, frame_tree, frame_bytes))(data, dice)


def packed(tree: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(tree)
    except (OverflowError, RecursionError, msgspec.MsgspecError, UnicodeError):
        return b"\xdd\xff\xff\xff\xff"  # a list of four thousand million


def packed_tree(data: bytes, dice: Dice) -> bytes:
    return packed(tree_damaged(msgspec.msgpack.decode(data), dice))


def read_frame(data: bytes) -> None:
    """In one piece, as gRPC brings it; and as a stream reads it, the lengths first."""
    try:
        if Decoder(attach=MAPPED).feed(data) is None:
            raise FormatError("it ends early")
    finally:
        begin_frame(data, MAPPED)


def read_shared(data: bytes) -> None:
    """A description of what lies in shared memory."""
    message = m.Push(**NUMBERED, place=(SEGMENT.name, data[0] << 6 if data else 0))
    head = sealed(msgspec.msgpack.encode(message), data, b"")
    for value in Decoder(attach=MAPPED).feed(head).values.values():
        np.asarray(value.value if isinstance(value, SelectedRows) else value).sum()


def map_segment(data: bytes) -> None:
    MAPPED(data.decode("utf-8", "replace"))


# -- rank 0 ------------------------------------------------------------------------------------
REQUESTS = [
    msgspec.msgpack.encode(each)
    for each in (
        membership.Join(1, 2, "t", b"info", "life"),
        membership.Report(1, 0, "lost"),
        membership.Beat(1),
        membership.Leave(1),
        membership.Post(1, "key", b"value"),
        membership.Fetch(1, "key"),
    )
]
STATES = [msgspec.msgpack.encode(membership.State(members=[b"a"], token="t", left=[1]))]


def ask_register(data: bytes) -> None:
    register = membership.Register(size=2, terms="t", silence=60, token="secret")
    register.handle(membership.Join(1, 2, "t", b"info", "life"), 1.0)
    msgspec.msgpack.encode(register.handle(read_request(data), 2.0))


# -- records -----------------------------------------------------------------------------------
RECORDS = [
    joined(written_record(*record))
    for record in (
        (Begin("start", 0, (5,), (KnownTrainer(0, 7),), 3),),
        (Joined(1, 8, True),),
        (Left(0),),
        (Round(1, (1,), ("e@GRAD",), (), ((0, 7, 3),)), {"w@GRAD": np.ones(4, np.float32)}),
        (Round(1, (1,), (), ("e@GRAD",), ()), {"e@GRAD": ROWS}),
        (Gathered(((0, 7, 4),)), {"0 mine": np.ones(2)}),
    )
]
_RECORDED = Recorded(1, {"s0": 3}, {"s0": 2}, 3, 4, 5, [{"epoch": 1}], 0)
TRAINERS_RECORDS = [joined(packed_record(msgspec.msgpack.encode(_RECORDED), {"x": np.ones(2)}))]
LOG_HEAD = b"BRWL\x01\0\0\0"


def _logged(body: bytes) -> bytes:
    length = len(body).to_bytes(8, "little")
    return length + zlib.crc32(body, zlib.crc32(length)).to_bytes(4, "little") + body


def record_tree(data: bytes, dice: Dice) -> bytes:
    length, described = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4))
    header, description = data[8 : 8 + length], data[8 + length : 8 + length + described]
    header = packed_tree(header, dice) if dice.random() < 0.6 else header
    if description and dice.random() < 0.6:
        description = packed_tree(description, dice)
    sizes = len(header).to_bytes(4, "little") + len(description).to_bytes(4, "little")
    return sizes + header + description + data[8 + length + described :]


def add_record(data: bytes) -> None:
    known = Known.at(Begin("start", 0, (5,), (KnownTrainer(0, 7),), 3))
    known.add(*read_record(data))


class Log:
    """A file that is read as a write-ahead log."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log-000001"

    def read(self, data: bytes) -> None:
        self._path.write_bytes(data)
        for record in LogReader(self._path):
            read_record(record)


LOGS = [LOG_HEAD + b"".join(map(_logged, RECORDS))]


def log_record(data: bytes, dice: Dice) -> bytes:
    """A log with one damaged record, rightly sealed."""
    records = list(RECORDS)
    at = dice.randrange(len(records))
    records[at] = dice.choice((record_tree, bytes_damaged))(records[at], dice)
    return LOG_HEAD + b"".join(map(_logged, records))


# -- manifests ---------------------------------------------------------------------------------
_ENTRY = {"name": "w", "dtype": "float32", "shape": [2, 3], "at": 0, "crc": 5, "begin": 0}
_IDS = {"name": "t (ids)", "dtype": "int64", "shape": [2], "at": 24, "crc": 7, "begin": 0}
_TABLE = {"name": "t", "dtype": "float32", "shape": [2, 3], "at": 40, "crc": 8, "height": None}
MANIFESTS = [
    json.dumps(
        {
            "format": 1,
            "step": 4,
            "size": 64,
            "parts": ["server-0", "server-1"],
            "readers": [{"epoch": 1}],
            "tensors": [{**_ENTRY, "height": 9}, {**_TABLE, "ids": _IDS}],
        }
    ).encode()
]


DATA = bytes(24) + np.arange(2).tobytes() + bytes(24)


def json_tree(data: bytes, dice: Dice) -> bytes:
    try:
        return json.dumps(tree_damaged(json.loads(data), dice)).encode()
    except RecursionError:
        return b"[" * 100_000


class PartFile:
    """The folder of a part whose manifest is sealed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "step-000000000004-0000000000000001" / "server-0"
        self._folder.mkdir(parents=True)
        (self._folder / "data").write_bytes(DATA)

    def read(self, data: bytes) -> None:
        from bireme.io.checkpoint import Checkpoint, missing_parts, parts_of

        seal = hashlib.sha256(data).hexdigest().encode()
        (self._folder / "manifest.json").write_bytes(seal + b"\n" + data)
        parts = parts_of(self._folder.parent)
        missing_parts(parts)
        Checkpoint(self._folder.parent, parts)


def with_sound_crcs(manifest: bytes) -> bytes:
    """The same with the data's checksums, so that what they guard is read."""
    for said, begin, end in ((b"5", 0, 24), (b"7", 24, 40), (b"8", 40, 64)):
        crc = b"%d" % zlib.crc32(DATA[begin:end])
        manifest = manifest.replace(b'"crc": ' + said, b'"crc": ' + crc)
    return manifest


# -- Fluid's messages and files ----------------------------------------------------------------
FLUID = [
    encode_variable(each)
    for each in (
        Variable(name="w", value=np.ones((3, 4), np.float32), trainer=1),
        Variable(name="e@GRAD", value=ROWS),
        Variable(name="l", value=LOD, out_name="x", table="t"),
        Variable(name="BATCH_BARRIER@RECV", trainer=1),
    )
]


def program_bytes() -> bytes:
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.layers.data("x", [4])
        loss = fluid.layers.mean(fluid.layers.fc(x, 3, act="relu"))
        fluid.optimizer.SGD(0.1).minimize(loss)
    found: bytes = main.desc.serialize_to_string()
    return found


def streams() -> list[bytes]:
    import io

    found = []
    for value in (np.ones((2, 3), np.float32), LOD, np.float64(3)):
        file = io.BytesIO()
        write_value(file, value)
        found.append(file.getvalue())
    return found


def rows_stream() -> bytes:
    import io

    file = io.BytesIO()
    write_value(file, ROWS)
    return file.getvalue()


@contextmanager
def kinds(folder: Path) -> Iterator[dict[str, Kind]]:
    """All of them; `folder` is for files."""
    protobuf: tuple[Damage, ...] = (fields_damaged, bytes_damaged)
    trees: tuple[Damage, ...] = (packed_tree, bytes_damaged)
    records: tuple[Damage, ...] = (record_tree, bytes_damaged)
    manifest: tuple[Damage, ...] = (json_tree, bytes_damaged)
    untrue = (Untrue, OtherFormat)
    descriptions = [d for d in (_cut_frame(each)[1] for each in FRAMES) if d]
    frames: tuple[Damage, ...] = (frame_tree, frame_bytes)
    part, log, served = PartFile(folder), Log(folder), Served()
    yield {
        "frames": Kind(FRAMES, (bytes_damaged, frame_tree, frame_bytes), read_frame, weight=6),
        "descriptions": Kind(descriptions, trees, read_layout, weight=2),
        "shared memory": Kind(descriptions, trees, read_shared, weight=2),
        "segment names": Kind([SEGMENT.name.encode()], (bytes_damaged,), map_segment),
        "requests to rank 0": Kind(REQUESTS, trees, ask_register, weight=2),
        "answers of rank 0": Kind(STATES, trees, read_answer),
        "Fluid's messages": Kind(FLUID, protobuf, decode_variable, weight=4),
        "programs": Kind([program_bytes()], protobuf, from_bytes),
        "tensor files": Kind(
            streams(), (bytes_damaged,), lambda d: Reader(d).tensor("x"), weight=2
        ),
        "row files": Kind(
            [rows_stream()], (bytes_damaged,), lambda d: Reader(d).selected_rows("x")
        ),
        "manifests": Kind(MANIFESTS, manifest, parsed, untrue, weight=4),
        "parts": Kind([with_sound_crcs(MANIFESTS[0])], manifest, part.read),
        "records": Kind(RECORDS, records, add_record, weight=4),
        "trainers' records": Kind(TRAINERS_RECORDS, records, read_recorded),
        "logs": Kind(LOGS, (log_record, bytes_damaged), log.read),
        "frames at a server": Kind(EXCHANGES, frames, served.exchange, also=SAVES),
        "calls at a server": Kind(CALLS, frames, served.call),
        "Fluid's calls at a server": Kind(FLUID_CALLS, protobuf, served.fluid),
    }
    served.close()


KINDS = (
    "frames", "descriptions", "shared memory", "segment names", "requests to rank 0",
    "answers of rank 0", "Fluid's messages", "programs", "tensor files", "row files", "manifests",
    "parts", "records", "trainers' records", "logs", "frames at a server", "calls at a server",
    "Fluid's calls at a server",
)  # fmt: skip
