"""Frames: a message and its tensors as buffers, and back, bit for bit.

    head       "BR" version 0 | uint32 length of header | uint32 length of description |
               uint32 crc of both | header | description
    payload    the tensors' bytes, end to end; row ids of SelectedRows before their values

The header is the message in msgpack, the description says which tensors follow (`layouts`). A
payload may lie in shared memory instead; the header then names its place. The file knows arrays
and bytes; it knows no socket and never trusts a length that it reads.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TypeAlias

import msgspec
import numpy as np

from bireme import flags
from bireme.arrays.namespaces import Array
from bireme.errors import FormatError

from . import messages as m
from .layouts import EMPTY, Layout, Value, describe, read_layout
from .memory import Mappings, Place

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
    "frame",
    "frame_of",
    "head_of",
    "pieces_of",
]

Buffer: TypeAlias = bytes | memoryview
PIECE = (
    1 << 20
)  # bytes of a gRPC message: larger fresh buffers cost more in page faults than copies
WORTH_SHARING = 64 << 10  # bytes: smaller payloads travel in the frame

_HEAD = struct.Struct("<2sBBIII")
HEAD = _HEAD.size
_MAGIC = b"BR"
_VERSION = 3
_encode_header = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(reduce(or_, m.KINDS)).decode


# -- out ---------------------------------------------------------------------------------------
Take = Callable[[int], tuple[Place, Array]]  # memory that the peer maps, for so many bytes


def frame(
    message: m.Message, values: Mapping[str, Value] | None = None, take: Take | None = None
) -> list[Buffer]:
    """The frame of `message` with `values` as its payload: its head, then the arrays' own memory,
    which must not change before it has left.

    With `take`, a payload worth sharing is copied into shared memory and the frame names its place.
    """
    if not values:
        return [head_of(message)]
    return frame_of(message, *describe(values), take)


def frame_of(
    message: m.Message, layout: Layout, arrays: Sequence[Array], take: Take | None = None
) -> list[Buffer]:
    """The same, of values whose layout is known."""
    if take is not None and layout.size >= WORTH_SHARING:
        place, memory = take(layout.aligned_size)
        layout.fill(memory, arrays)
        return [head_of(msgspec.structs.replace(message, place=place), layout.encoded)]
    return [head_of(message, layout.encoded), *layout.sections(arrays)]


def encode(message: m.Message) -> bytes:
    """The frame of a message without payload."""
    return head_of(message)


def head_of(message: m.Message, description: bytes = b"") -> bytes:
    """A frame's head: a message, and the description of the payload."""
    header = _encode_header(message)
    crc = zlib.crc32(description, zlib.crc32(header))
    sizes = (len(header), len(description), crc)
    return b"".join((_HEAD.pack(_MAGIC, _VERSION, 0, *sizes), header, description))


def pieces_of(parts: Sequence[Buffer]) -> Iterator[bytes]:
    """A frame as messages of about PIECE bytes; its head is never cut."""
    pending: list[Buffer] = []
    left = PIECE
    for part in parts:
        if not pending:
            pending, left = [part], max(0, PIECE - len(part))
            continue
        section = memoryview(part)
        while len(section) > left:
            pending.append(section[:left])
            yield b"".join(pending)
            section, pending, left = section[left:], [], PIECE
        pending.append(section)
        left -= len(section)
    if pending:
        yield b"".join(pending)


# -- in ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Received:
    """A whole frame; `layout` describes its payload."""

    message: m.Message
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

    def __init__(self, check: Check | None = None, attach: Mappings | None = None) -> None:
        self._check = check
        self._attach = attach
        self._most_header = int(flags.get("rpc_header_kb")) << 10
        self._most_payload = int(flags.get("rpc_frame_mb")) << 20
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

    def frames(self) -> Iterator[memoryview | Received]:
        """Read frames in place: of each one the buffers to be filled next, one after the other, and
        then the frame.

        Raises:
            FormatError: what was filled is no head.
        """
        while True:
            first = bytearray(_HEAD.size)
            yield memoryview(first)
            rest = bytearray(self._rest_of(first))
            yield memoryview(rest)
            self._begin(bytes(first + rest))
            received, self._begun = self._begun, None
            while self._targets:
                yield memoryview(self._targets.pop())
            assert received is not None
            yield received

    def _rest_of(self, first: bytearray) -> int:
        """How many bytes of a frame's head follow the first ones, which give their number."""
        magic, version, _, length, described, _ = _HEAD.unpack(first)
        if magic != _MAGIC or version != _VERSION:
            raise FormatError("not a frame of this protocol", offset=0)
        if length + described > self._most_header:
            raise FormatError(
                f"a frame's header of {length + described} bytes",
                offset=0,
                hint="FLAGS_rpc_header_kb is the limit",
            )
        return int(length + described)

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
        if layout.aligned_size > self._most_payload:
            raise FormatError(
                f"a frame of {layout.aligned_size} bytes", hint="FLAGS_rpc_frame_mb is the limit"
            )
        try:
            memory = np.empty(layout.aligned_size, np.uint8)
        except MemoryError:
            raise FormatError(f"no memory for {layout.aligned_size} bytes") from None
        self._targets = [memory[run.begin : run.begin + run.size] for run in layout.runs]
        self._targets.reverse()
        return layout.views(memory)

    def _window(self, message: m.Message, layout: Layout) -> dict[str, Value]:
        """Arrays where the sender has put them; known ones if it has done so before."""
        assert message.place is not None
        if self._attach is None:
            raise FormatError("a payload in shared memory, which this side has not agreed to")
        name, at = message.place
        memory, known = self._attach.views(name)
        values = known.get((at, layout))
        if values is None:
            if at < 0 or at + layout.aligned_size > len(memory):
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


def _read_head(piece: bytes) -> tuple[m.Message, Layout, int]:
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
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"unknown message in the frame: {error}", offset=_HEAD.size) from None
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
