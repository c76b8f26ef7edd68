"""Frames: a message and its tensors as a few `bytes`, and back, bit for bit.

    first piece   "BR" version 0 | uint32 length of header | uint32 length of description |
                  uint32 crc of both | header | description | payload ...
    next pieces   payload ...

The header is the message in msgpack, the description says which tensors follow (`layouts`), and
the payload is their raw bytes, end to end, row ids of SelectedRows before their values. Pieces
hold about a mebibyte: large fresh buffers cost more in page faults than in copying. The file
knows arrays and bytes; it knows no socket and never trusts a length that it reads.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np

from bireme.errors import FormatError
from bireme.runtime.arrays import Array

from . import messages as m
from .layouts import EMPTY, Layout, Value, describe, read_layout
from .shared import Attached, Place

__all__ = [
    "HEAD",
    "PIECE",
    "WORTH_SHARING",
    "Buffer",
    "Decoder",
    "Received",
    "Take",
    "Value",
    "decode",
    "encode",
    "framed",
    "joined",
    "pack",
    "parts_of",
    "rest_of_head",
    "unpack",
]

Buffer: TypeAlias = bytes | memoryview
PIECE = 1 << 20
WORTH_SHARING = 64 << 10  # bytes: less travels in the frame
Said: TypeAlias = (
    m.Push | m.Barrier | m.Pull | m.Lookup | m.Share | m.Save | m.Hello | m.Heartbeat | m.Complete |
    m.Abort | m.Welcome | m.Accepted | m.Values | m.Refused
)  # fmt: skip

_HEAD = struct.Struct("<2sBBIII")
HEAD = _HEAD.size
LARGEST_HEAD = 64 << 20  # bytes: very many names
_LENGTH = struct.Struct("<I")
_MAGIC = b"BR"
_VERSION = 2
_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Said).decode


# -- out ---------------------------------------------------------------------------------------
Take = Callable[[int], tuple[Place, Array]]  # room in shared memory


def encode(
    message: m.Message, values: Mapping[str, Value] | None = None, take: Take | None = None
) -> list[bytes]:
    """The frame of `message` with `values` as its payload; every array is copied once, here.

    With `take`, a payload of some size goes into shared memory and the frame only names its place.
    """
    if not values:
        return [framed(message)]
    layout, arrays = describe(values)
    if take is not None and layout.size >= WORTH_SHARING:
        place, room = take(layout.room)
        layout.fill(room, arrays)
        return [framed(msgspec.structs.replace(message, place=place), layout.said)]
    return list(_pieces(memoryview(framed(message, layout.said)), layout.sections(arrays)))


def parts_of(message: m.Message, values: Mapping[str, Value] | None = None) -> list[Buffer]:
    """The frame of `message` as its head and the arrays' own memory, which must not change before
    it has left.
    """
    if not values:
        return [framed(message)]
    layout, arrays = describe(values)
    return [framed(message, layout.said), *layout.sections(arrays)]


def joined(parts: Sequence[Buffer]) -> list[bytes]:
    """The same frame in pieces for gRPC."""
    whole = [part for part in parts if isinstance(part, bytes)]
    if len(whole) == len(parts):
        return whole
    return list(_pieces(memoryview(parts[0]), [memoryview(part) for part in parts[1:]]))


def framed(message: m.Message, said: bytes = b"") -> bytes:
    """A frame's first piece, without payload: a message, and the description of what follows it."""
    header = _encode_header(message)
    crc = zlib.crc32(said, zlib.crc32(header))
    return b"".join((_HEAD.pack(_MAGIC, _VERSION, 0, len(header), len(said), crc), header, said))


def _pieces(head: memoryview, sections: Iterable[memoryview]) -> Iterator[bytes]:
    """`head` and `sections` end to end, cut into pieces of about PIECE bytes."""
    parts, room = [head], max(0, PIECE - len(head))
    for section in sections:
        while len(section) > room:
            parts.append(section[:room])
            yield b"".join(parts)
            section, parts, room = section[room:], [], PIECE
        parts.append(section)
        room -= len(section)
    if parts:
        yield b"".join(parts)


# -- in ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Received:
    """A whole frame; `layout` describes its payload."""

    message: Said
    values: dict[str, Value]
    layout: Layout = EMPTY

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self.layout.size


Check = Callable[[m.Message, Layout], None]


class Decoder:
    """Puts frames together from pieces. `check` may refuse a payload before there is memory for it;
    `attach` opens shared memory, and what lies there is not copied.

    After a FormatError the stream has no known boundary any more: close it.
    """

    def __init__(self, check: Check | None = None, attach: Attached | None = None) -> None:
        self._check = check
        self._attach = attach
        self._begun: Received | None = None
        self._targets: list[Array] = []
        self._filled = 0

    @property
    def idle(self) -> bool:
        """Whether no frame is half read."""
        return self._begun is None

    def feed(self, piece: bytes) -> Received | None:
        """Take the next piece; the frame, if this piece ends it.

        Raises:
            FormatError: the bytes are no frame.
        """
        start = self._begin(piece) if self._begun is None else 0
        if self._targets or start < len(piece):
            self._fill(piece, start)
        if self._targets:
            return None
        received, self._begun = self._begun, None
        return received

    def announce(self, head: bytes) -> list[Array]:
        """Begin a frame that comes without pieces: what is to be filled, in order, after its head.

        Raises:
            FormatError: the bytes are no head.
        """
        self._begin(head)
        targets, self._targets = self._targets[::-1], []
        return targets

    def complete(self) -> Received:
        """The frame whose arrays have been filled."""
        received, self._begun = self._begun, None
        assert received is not None
        return received

    def _begin(self, piece: bytes) -> int:
        message, layout, start = _read_head(piece)
        if self._check is not None and layout.tensors:
            self._check(message, layout)
        self._targets, self._filled = [], 0
        if message.place is None:
            values = self._fresh(layout) if layout.tensors else {}
        else:
            values = self._window(message, layout)
        self._begun = Received(message, values, layout)
        return start

    def _fresh(self, layout: Layout) -> dict[str, Value]:
        """Arrays that the next pieces fill."""
        try:
            memory = np.empty(layout.room, np.uint8)
        except MemoryError:
            raise FormatError(f"no memory for {layout.room} bytes") from None
        self._targets = [memory[run.begin : run.begin + run.size] for run in layout.runs]
        self._targets.reverse()
        return layout.views(memory)

    def _window(self, message: Said, layout: Layout) -> dict[str, Value]:
        """Arrays where the sender has put them; known ones if it has done so before."""
        assert message.place is not None
        if self._attach is None:
            raise FormatError("a payload in shared memory, which this side has not agreed to")
        name, at = message.place
        memory, known = self._attach.window(name)
        values = known.get((at, layout))
        if values is None:
            if at < 0 or at + layout.room > len(memory):
                raise FormatError(f"the place {message.place} lies outside", offset=at)
            values = layout.views(memory, at)
            if layout.steady:
                known[at, layout] = values
        return values

    def _fill(self, piece: bytes, start: int) -> None:
        source = np.frombuffer(piece, np.uint8)
        while self._targets and start < len(piece):
            target = self._targets[-1]
            count = min(len(target) - self._filled, len(piece) - start)
            target[self._filled : self._filled + count] = source[start : start + count]
            start += count
            self._filled += count
            if self._filled == len(target):
                self._targets.pop()
                self._filled = 0
        if start < len(piece):
            raise FormatError(f"{len(piece) - start} bytes after the frame", offset=start)


def rest_of_head(first: bytes | bytearray) -> int:
    """How many bytes of a frame's head follow the first HEAD.

    Raises:
        FormatError: it is no frame's head.
    """
    magic, version, _, length, described, _ = _HEAD.unpack(first)
    if magic != _MAGIC or version != _VERSION or length + described > LARGEST_HEAD:
        raise FormatError("not a frame of this protocol", offset=0)
    return int(length + described)


def _read_head(piece: bytes) -> tuple[Said, Layout, int]:
    if len(piece) < _HEAD.size:
        raise FormatError(f"a frame cannot be {len(piece)} bytes long", offset=0)
    magic, version, _, length, described, crc = _HEAD.unpack_from(piece)
    if magic != _MAGIC or version != _VERSION:
        raise FormatError(
            "not a frame of this protocol",
            offset=0,
            hint="is the peer another version, or another program?",
        )
    middle = _HEAD.size + length
    start = middle + described
    whole = memoryview(piece)
    if start > len(piece) or zlib.crc32(whole[_HEAD.size : start]) != crc:
        raise FormatError("the frame's header is damaged", offset=_HEAD.size)
    try:
        message = _decode_header(whole[_HEAD.size : middle])
    except msgspec.DecodeError as error:
        raise FormatError(
            f"the frame's header says nothing known: {error}", offset=_HEAD.size
        ) from None
    return message, read_layout(piece[middle:start]) if described else EMPTY, start


def decode(pieces: Iterable[bytes]) -> Received:
    """One whole frame.

    Raises:
        FormatError: the pieces are no frame, or end early.
    """
    decoder = Decoder()
    received = None
    for piece in pieces:
        if received is not None:
            raise FormatError("bytes after the frame")
        received = decoder.feed(piece)
    if received is None:
        raise FormatError("the frame ends early")
    return received


# -- several pieces in one message -------------------------------------------------------------
def pack(pieces: Iterable[bytes]) -> bytes:
    """Pieces as one message, for exchanges that are small on the wire."""
    parts: list[bytes] = []
    for piece in pieces:
        parts += [_LENGTH.pack(len(piece)), piece]
    return b"".join(parts)


def unpack(message: bytes) -> list[bytes]:
    """The pieces of a packed message.

    Raises:
        FormatError: it does not end where a piece ends.
    """
    pieces, at = [], 0
    while at < len(message):
        if at + _LENGTH.size > len(message):
            raise FormatError("a packed message ends within a length", offset=at)
        (size,) = _LENGTH.unpack_from(message, at)
        at += _LENGTH.size
        if at + size > len(message):
            raise FormatError("a packed message ends within a piece", offset=at)
        pieces.append(message[at : at + size])
        at += size
    return pieces
