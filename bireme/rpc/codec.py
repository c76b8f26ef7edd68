"""Frames: a message and its tensors as a few `bytes`, and back, bit for bit.

    first piece   "BR" version 0 | uint32 length of header | uint32 crc of header | header |
    payload ... next pieces   payload ...

The header is the message in msgpack; the payload is every announced tensor's raw bytes, end to
end, row ids of SelectedRows before their values. Pieces hold about a mebibyte: large fresh
buffers cost more in page faults than in copying. The file knows arrays and bytes; it knows no
socket and never trusts a length that it reads.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from bireme.errors import FormatError
from bireme.runtime.arrays import Array
from bireme.runtime.values import LoDTensor, SelectedRows, is_valid_lod

from . import messages as m
from .shared import ALIGN, Place, aligned

__all__ = [
    "PIECE",
    "WORTH_SHARING",
    "Decoder",
    "Received",
    "Take",
    "Value",
    "decode",
    "encode",
    "pack",
    "unpack",
]

PIECE = 1 << 20
LARGEST = 1 << 40  # bytes of one frame
WORTH_SHARING = 64 << 10  # bytes: less travels in the frame
Value: TypeAlias = Any  # an array, LoDTensor or SelectedRows
Said: TypeAlias = (
    m.Push | m.Barrier | m.Pull | m.Lookup | m.Hello | m.Heartbeat | m.Complete | m.Abort |
    m.Welcome | m.Accepted | m.Values | m.Refused
)  # fmt: skip

_HEAD = struct.Struct("<2sBBII")
_LENGTH = struct.Struct("<I")
_MAGIC = b"BR"
_VERSION = 1
_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
_DTYPES = {np.dtype(name): name for name in _NAMES}  # asking a dtype for its name is slow
_SIZES = {name: dtype.itemsize for dtype, name in _DTYPES.items()}
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
        return [_head(message)]
    tensors, arrays = [], []
    for name, value in values.items():
        tensor, parts = _describe(name, value)
        tensors.append(tensor)
        arrays += [array for array in parts if array.size]
    message = msgspec.structs.replace(message, tensors=tuple(tensors))
    if take is not None and sum(array.nbytes for array in arrays) >= WORTH_SHARING:
        return [_head(msgspec.structs.replace(message, place=_put(arrays, take)))]
    return list(_pieces(memoryview(_head(message)), [_raw(array) for array in arrays]))


def _put(arrays: list[Array], take: Take) -> Place:
    """Copy arrays into shared memory, each at an aligned distance."""
    place, room = take(sum(aligned(array.nbytes) for array in arrays))
    at = 0
    for array in arrays:
        room[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        at += aligned(array.nbytes)
    return place


def _head(message: m.Message) -> bytes:
    header = _encode_header(message)
    return _HEAD.pack(_MAGIC, _VERSION, 0, len(header), zlib.crc32(header)) + header


def _describe(name: str, value: Value) -> tuple[m.Tensor, tuple[Array, ...]]:
    if isinstance(value, SelectedRows):
        rows = np.ascontiguousarray(value.rows, dtype=np.int64)
        array = _plain(name, value.value)
        kind = _DTYPES[array.dtype]
        tensor = m.Tensor(name, kind, array.shape, (), len(rows), int(value.height))
        return tensor, (rows, array)
    lod: tuple[tuple[int, ...], ...] = ()
    if isinstance(value, LoDTensor):
        lod = tuple(tuple(level.tolist()) for level in value.offsets)
        value = value.array
    array = _plain(name, value)
    return m.Tensor(name, _DTYPES[array.dtype], array.shape, lod), (array,)


def _plain(name: str, value: Any) -> Array:
    array = np.asarray(value, order="C")
    if array.dtype not in _DTYPES:
        raise FormatError(f"a {array.dtype} array cannot travel", tensor=name)
    return array


def _raw(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8))


def _pieces(head: memoryview, sections: Iterable[memoryview]) -> Iterator[bytes]:
    """`head` and `sections` end to end, cut into pieces of about PIECE bytes."""
    parts, room = [head], PIECE - len(head)
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
    """A whole frame; `size` is its payload in bytes."""

    message: Said
    values: dict[str, Value]
    size: int = 0


Check = Callable[[m.Message, m.Tensor], None]
Attach = Callable[[str], Array]
Room = Callable[[tuple[int, ...], str], Array]


class Decoder:
    """Puts frames together from pieces. `check` may refuse a tensor before there is memory for it;
    `attach` opens shared memory, and what lies there is not copied.

    After a FormatError the stream has no known boundary any more: close it.
    """

    def __init__(
        self, check: Check | None = None, attach: Attach | None = None, largest: int = LARGEST
    ) -> None:
        self._check = check
        self._attach = attach
        self._largest = largest
        self._message: Said | None = None
        self._values: dict[str, Value] = {}
        self._targets: list[Array] = []
        self._filled = 0
        self._size = 0

    @property
    def idle(self) -> bool:
        """Whether no frame is half read."""
        return self._message is None

    def feed(self, piece: bytes) -> Received | None:
        """Take the next piece; the frame, if this piece ends it.

        Raises:
            FormatError: the bytes are no frame.
        """
        start = self._begin(piece) if self._message is None else 0
        self._fill(piece, start)
        if self._targets:
            return None
        assert self._message is not None
        received = Received(self._message, self._values, self._size)
        self._message, self._values = None, {}
        return received

    def _begin(self, piece: bytes) -> int:
        message, start = _read_head(piece)
        self._size = _check_sizes(message.tensors, self._largest)
        for tensor in message.tensors if self._check is not None else ():
            self._check(message, tensor)  # type: ignore[misc]  # is not None
        self._targets, self._filled = [], 0
        room = self._fresh if message.place is None else self._window(message)
        self._values = {tensor.name: _value(tensor, room) for tensor in message.tensors}
        self._targets.reverse()
        self._message = message
        return start

    def _fresh(self, shape: tuple[int, ...], dtype: str) -> Array:
        """An array that the next pieces fill."""
        try:
            array = np.empty(shape, dtype)
        except MemoryError:
            raise FormatError(f"no memory for {dtype}{list(shape)}") from None
        if array.size:
            self._targets.append(array.reshape(-1).view(np.uint8))
        return array

    def _window(self, message: Said) -> Room:
        """Arrays where the sender has put them."""
        assert message.place is not None
        name, at = message.place
        if self._attach is None:
            raise FormatError("a payload in shared memory, which this side has not agreed to")
        source = self._attach(name)

        def room(shape: tuple[int, ...], dtype: str) -> Array:
            nonlocal at
            size = math.prod(shape) * _SIZES[dtype]
            if at < 0 or at % ALIGN or at + size > len(source):
                raise FormatError(f"the place {message.place} lies outside", offset=at)
            array = source[at : at + size].view(dtype).reshape(shape)
            at += aligned(size)
            return array

        return room

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


def _value(tensor: m.Tensor, room: Room) -> Value:
    if tensor.rows >= 0:
        rows = room((tensor.rows,), "int64")
        return SelectedRows(rows, room(tensor.shape, tensor.dtype), tensor.height)
    array = room(tensor.shape, tensor.dtype)
    if tensor.lod:
        return LoDTensor(array, tuple(np.array(level, np.int64) for level in tensor.lod))
    return array


def _read_head(piece: bytes) -> tuple[Said, int]:
    if len(piece) < _HEAD.size:
        raise FormatError(f"a frame cannot be {len(piece)} bytes long", offset=0)
    magic, version, _, length, crc = _HEAD.unpack_from(piece)
    if magic != _MAGIC or version != _VERSION:
        raise FormatError(
            "not a frame of this protocol",
            offset=0,
            hint="is the peer another version, or another program?",
        )
    start = _HEAD.size + length
    header = memoryview(piece)[_HEAD.size : start]
    if len(header) != length or zlib.crc32(header) != crc:
        raise FormatError("the frame's header is damaged", offset=_HEAD.size)
    try:
        return _decode_header(header), start
    except msgspec.DecodeError as error:
        raise FormatError(
            f"the frame's header says nothing known: {error}", offset=_HEAD.size
        ) from None


def _check_sizes(tensors: tuple[m.Tensor, ...], largest: int) -> int:
    """The payload's size, once every announcement has been found possible."""
    total = 0
    for tensor in tensors:
        total += _size(tensor)
        if total > largest:
            raise FormatError(f"the frame would hold {total} bytes", tensor=tensor.name)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise FormatError("a tensor stands in the frame twice")
    return total


def _size(tensor: m.Tensor) -> int:
    if tensor.dtype not in _SIZES:
        raise FormatError(f"unknown dtype '{tensor.dtype}'", tensor=tensor.name)
    if any(n < 0 for n in tensor.shape) or tensor.rows < -1 or len(tensor.shape) > 32:
        raise FormatError(f"impossible shape {tensor.shape}", tensor=tensor.name)
    if tensor.rows >= 0 and (not tensor.shape or tensor.shape[0] != tensor.rows):
        raise FormatError(f"{tensor.rows} rows for shape {tensor.shape}", tensor=tensor.name)
    if tensor.lod and not (tensor.shape and _lod_fits(tensor)):
        raise FormatError(f"the LoD {tensor.lod} does not fit {tensor.shape}", tensor=tensor.name)
    return math.prod(tensor.shape) * _SIZES[tensor.dtype] + 8 * max(tensor.rows, 0)


def _lod_fits(tensor: m.Tensor) -> bool:
    try:
        lod = tuple(np.array(level, np.int64) for level in tensor.lod)
    except OverflowError:
        return False
    return is_valid_lod(lod, tensor.shape[0])


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
