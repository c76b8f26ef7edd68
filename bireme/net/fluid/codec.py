"""Fluid's `VariableMessage`, read without copying and written with one copy.

Protobuf's wire form by hand: a generated message would copy every payload twice more. Fields are
written in the order that a Fluid receiver needs: what describes the tensor before its bytes.
Knows no service and no meaning of names.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import Lod, LoDTensor, SelectedRows, is_valid_lod
from bireme.errors import BiremeError, FormatError
from bireme.ir import numpy_name, to_dtype
from bireme.net.frames import Value

__all__ = ["Variable", "decode_variable", "encode_variable"]

SELECTED_ROWS = 1
_TEXT = {1: "name", 10: "out_name", 13: "table"}
_NUMBER = {2: "kind", 3: "dtype", 5: "lod_level", 7: "height", 11: "profile", 12: "trainer"}


@dataclass(slots=True)
class Variable:
    """One message: names, and a value where there is one."""

    name: str = ""
    out_name: str = ""
    table: str = ""
    trainer: int = 0
    profile: int = 0
    value: Value | None = None
    size: int = 0  # of the message that it was read from, in bytes


# -- in ----------------------------------------------------------------------------------------
def decode_variable(message: bytes) -> Variable:
    """Read a message; arrays are views of its bytes.

    Raises:
        FormatError: the bytes are no such message.
    """
    view = memoryview(message)
    found: dict[str, int | str] = {}
    dims: list[int] = []
    lod: list[Array] = []
    payload: memoryview | None = None
    rows = memoryview(b"")
    for number, field in _fields(view):
        if isinstance(field, int):
            _put_number(found, dims, number, field)
        elif number in _TEXT:
            found[_TEXT[number]] = _text(field)
        elif number == 4:
            dims += [_signed(n) for n in _varints(field)]
        elif number == 6:
            lod.append(_level(field))
        elif number == 8:
            payload = field
        elif number == 9:
            rows = field
    variable = Variable(
        str(found.get("name", "")),
        str(found.get("out_name", "")),
        str(found.get("table", "")),
        int(found.get("trainer", 0)),
        int(found.get("profile", 0)),
    )
    if payload is not None or dims:
        kind, height = int(found.get("kind", 0)), int(found.get("height", 0))
        array = _array(variable.name, int(found.get("dtype", 0)), dims, payload)
        variable.size = len(message)
        variable.value = _value(variable.name, array, kind, height, rows, tuple(lod))
    return variable


def _put_number(found: dict[str, int | str], dims: list[int], number: int, value: int) -> None:
    if number in _NUMBER:
        found[_NUMBER[number]] = _signed(value)
    elif number == 4:
        dims.append(_signed(value))


def _array(name: str, dtype: int, dims: list[int], payload: memoryview | None) -> Array:
    if any(n < 0 for n in dims):
        raise FormatError(f"impossible dims {dims}", tensor=name)
    try:
        kind = np.dtype(numpy_name(to_dtype(dtype)))
        return np.frombuffer(payload or b"", kind).reshape(dims)
    except (ValueError, TypeError, KeyError, OverflowError, BiremeError) as error:
        raise FormatError(
            f"dims {dims} of dtype {dtype} do not fit: {error}", tensor=name
        ) from None


def _value(
    name: str, array: Array, kind: int, height: int, rows: memoryview, lod: tuple[Array, ...]
) -> Value:
    if kind == SELECTED_ROWS:
        if not array.ndim or len(rows) != 8 * len(array):
            raise FormatError(
                f"{len(rows)} bytes of row ids for a value of shape {list(array.shape)}",
                tensor=name,
            )
        return SelectedRows(np.frombuffer(rows, np.int64), array, height)
    empty = array.ndim and not len(array)  # Fluid gives a level without sequences one offset
    if lod and not (empty or (array.ndim and is_valid_lod(lod, len(array)))):
        raise FormatError(f"the LoD does not fit a value of shape {list(array.shape)}", tensor=name)
    return LoDTensor(array, lod) if lod else array


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of every field: an int, or the bytes of a field with a length."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield tag >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind, -1)
        if kind == 2:
            size, at = _varint(view, at)
        if size < 0 or at + size > len(view):
            raise FormatError(f"field {tag >> 3} does not end in the message", offset=at)
        yield tag >> 3, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(view) and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise FormatError("a number does not end", offset=at)


def _varints(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        value, at = _varint(view, at)
        yield value


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _text(field: memoryview) -> str:
    try:
        return str(field, "utf-8")
    except UnicodeDecodeError:
        raise FormatError("a name is no text") from None


def _level(field: memoryview) -> Array:
    numbers: list[int] = []
    for number, value in _fields(field):
        if number == 1:
            numbers += [value] if isinstance(value, int) else list(_varints(value))
    return np.array([_signed(n) for n in numbers], np.int64)


# -- out ---------------------------------------------------------------------------------------
def encode_variable(variable: Variable) -> bytes:
    """Write a message; the payload is copied once."""
    head = bytearray()
    _put_bytes(head, 1, variable.name.encode())
    tail: list[memoryview | bytes] = []
    if variable.value is not None:
        tail = _put_value(head, variable.value)
    _put_bytes(head, 10, variable.out_name.encode())
    _put_int(head, 11, variable.profile)
    _put_int(head, 12, variable.trainer)
    _put_bytes(head, 13, variable.table.encode())
    return b"".join([head, *tail])


def _put_value(head: bytearray, value: Value) -> list[memoryview | bytes]:
    rows, height = None, 0
    lod: Lod = ()
    if isinstance(value, SelectedRows):
        rows, height = np.ascontiguousarray(value.rows, np.int64), value.height
        value = value.value
        _put_int(head, 2, SELECTED_ROWS)
    elif isinstance(value, LoDTensor):
        value, lod = value.array, value.offsets
    array = np.asarray(value, order="C")
    _put_int(head, 3, int(to_dtype(array.dtype)))
    _put_bytes(head, 4, b"".join(_varint_bytes(n) for n in array.shape))
    _put_int(head, 5, len(lod))
    for level in lod:
        packed = bytearray()
        _put_bytes(packed, 1, b"".join(_varint_bytes(int(n)) for n in level))
        _put_bytes(head, 6, bytes(packed), always=True)
    _put_int(head, 7, height)
    tail = [*_section(8, array)]
    return tail if rows is None else [*tail, *_section(9, rows)]


def _section(number: int, array: Array) -> Iterator[memoryview | bytes]:
    if array.size:
        yield _varint_bytes(number << 3 | 2) + _varint_bytes(array.nbytes)
        yield memoryview(array.reshape(-1).view(np.uint8))


def _put_int(out: bytearray, number: int, value: int) -> None:
    if value:
        out += _varint_bytes(number << 3) + _varint_bytes(value)


def _put_bytes(out: bytearray, number: int, value: bytes, always: bool = False) -> None:
    if value or always:
        out += _varint_bytes(number << 3 | 2) + _varint_bytes(len(value)) + value


def _varint_bytes(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
