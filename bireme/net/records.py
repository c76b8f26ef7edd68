"""A header and tensors as the body of one record of a log. No files, no sockets."""

import struct
from collections.abc import Mapping

import numpy as np

from bireme.errors import FormatError

from .layouts import EMPTY, Value, describe, read_layout

__all__ = ["packed", "unpacked"]

_SIZES = struct.Struct("<II")


def packed(header: bytes, values: Mapping[str, Value] | None = None) -> list[bytes | memoryview]:
    """The record as buffers, which are the arrays' own memory."""
    if not values:
        return [_SIZES.pack(len(header), 0), header]
    layout, arrays = describe(values)
    sizes = _SIZES.pack(len(header), len(layout.encoded))
    return [sizes, header, layout.encoded, *layout.sections(arrays)]


def unpacked(data: bytes) -> tuple[bytes, dict[str, Value]]:
    """The header, and the tensors in memory of their own.

    Raises:
        FormatError: the bytes are no record.
    """
    if len(data) < _SIZES.size:
        raise FormatError(f"a log's record cannot be {len(data)} bytes long")
    length, described = _SIZES.unpack_from(data)
    middle = _SIZES.size + length
    at = middle + described
    layout = read_layout(data[middle:at]) if described else EMPTY
    if at + layout.size != len(data):
        raise FormatError(f"a log's record of {len(data)} bytes, not {at + layout.size}")
    memory = np.empty(layout.aligned_size, np.uint8)
    for run in layout.runs:
        memory[run.begin : run.begin + run.size] = np.frombuffer(data, np.uint8, run.size, at)
        at += run.size
    return data[_SIZES.size : middle], layout.views(memory)
