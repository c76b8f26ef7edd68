"""Tensors as Fluid 1.8 writes them to disk, byte for byte.

A LoDTensor stream is: uint32 version 0, uint64 number of LoD levels, per level its byte length and
uint64 offsets, then the tensor. A SelectedRows stream is: uint32 version 0, uint64 count of rows,
int64 row ids, int64 height, then the tensor. A tensor is: uint32 version 0, int32 length of a
TensorDesc, that message, raw data. Little endian throughout; no magic number and no checksum, so
every length is checked against what is left.
"""

import struct
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.values import LoDTensor, SelectedRows, is_valid_lod
from bireme.errors import FormatError
from bireme.ir import ITEM_SIZE, VarType, numpy_name, to_dtype
from bireme.protos import framework_pb2 as pb

__all__ = ["Reader", "write_value"]

_MAX_DESC = 4096


def write_value(file: BinaryIO, value: Any) -> None:
    """Append an array, a LoDTensor or SelectedRows to a stream."""
    if isinstance(value, SelectedRows):
        rows = np.asarray(to_host(value.rows), dtype="<i8")
        file.write(struct.pack("<IQ", 0, rows.size))
        file.write(rows.tobytes())
        file.write(struct.pack("<q", value.height))
        _write_tensor(file, value.value)
        return
    offsets = value.offsets if isinstance(value, LoDTensor) else ()
    file.write(struct.pack("<IQ", 0, len(offsets)))
    for level in offsets:
        data = np.asarray(level, dtype="<u8")
        file.write(struct.pack("<Q", data.nbytes))
        file.write(data.tobytes())
    _write_tensor(file, value.array if isinstance(value, LoDTensor) else value)


def _write_tensor(file: BinaryIO, array: Array) -> None:
    host: Array = to_host(array)
    host = np.ascontiguousarray(host).reshape(np.shape(host))
    desc = pb.VarType.TensorDesc(data_type=int(to_dtype(host.dtype)), dims=host.shape)  # type: ignore[arg-type]
    header = desc.SerializeToString()
    file.write(struct.pack("<Ii", 0, len(header)))
    file.write(header)
    if host.size:
        file.write(memoryview(host).cast("B"))


class Reader:
    """Reads consecutive streams from the content of a file.

    Every error is a `FormatError` that names the file, the tensor and the byte offset.
    """

    def __init__(self, data: bytes | memoryview, file: str = "") -> None:
        self._data = memoryview(data)
        self._file = file
        self._tensor = ""
        self.offset = 0

    def tensor(self, name: str) -> Any:
        """The next LoDTensor stream: an array, or a LoDTensor if it has a LoD."""
        self._tensor = name
        self._version()
        levels = self._count("LoD levels", 8)
        offsets = tuple(self._level() for _ in range(levels))
        array = self._array()
        if offsets and not (array.ndim and is_valid_lod(offsets, len(array))):
            raise self._damaged("the LoD does not fit the rows of the tensor")
        return LoDTensor(array, offsets) if offsets else array

    def selected_rows(self, name: str) -> SelectedRows:
        """The next SelectedRows stream."""
        self._tensor = name
        self._version()
        count = self._count("rows", 8)
        rows = np.frombuffer(self._take(8 * count, "row ids"), dtype="<i8").astype(np.int64)
        (height,) = struct.unpack("<q", self._take(8, "the height"))
        value = self._array()
        if value.ndim == 0 or len(value) != count:
            raise self._damaged(f"{count} row ids but a value of shape {list(value.shape)}")
        return SelectedRows(rows, value, height)

    def end(self) -> None:
        """Check that the end is reached.

        Raises:
            FormatError: bytes are left over.
        """
        if self.offset != len(self._data):
            raise self._damaged(f"{len(self._data) - self.offset} bytes follow the last tensor")

    def _version(self) -> None:
        (version,) = struct.unpack("<I", self._take(4, "a version"))
        if version:
            self.offset -= 4
            raise self._damaged(f"version {version} is not known")

    def _level(self) -> Array:
        nbytes = self._count("LoD bytes", 1)
        if nbytes % 8:
            raise self._damaged(f"a LoD level of {nbytes} bytes")
        return np.frombuffer(self._take(nbytes, "LoD offsets"), dtype="<u8").astype(np.int64)

    def _array(self) -> Array:
        self._version()
        (length,) = struct.unpack("<i", self._take(4, "the length of a description"))
        if not 0 < length <= _MAX_DESC:
            raise self._damaged(f"a tensor description of {length} bytes")
        try:
            desc = pb.VarType.TensorDesc.FromString(bytes(self._take(length, "a description")))
            dtype = VarType(desc.data_type)
            item = ITEM_SIZE[dtype]
        except (DecodeError, ValueError, KeyError):
            raise self._damaged("the tensor description cannot be read") from None
        count = 1
        for n in desc.dims:
            if n < 0:
                raise self._damaged(f"a tensor of shape {list(desc.dims)}")
            count *= n
        data = np.frombuffer(self._take(count * item, "data"), dtype=np.dtype(numpy_name(dtype)))
        try:
            return data.reshape(tuple(desc.dims)).copy()
        except ValueError:  # no elements, and dimensions that NumPy does not take
            raise self._damaged(f"a tensor of shape {list(desc.dims)}") from None

    def _count(self, what: str, size: int) -> int:
        """A uint64 count of items of `size` bytes that must fit in the remaining data."""
        count: int = struct.unpack("<Q", self._take(8, f"a number of {what}"))[0]
        if count * size > len(self._data) - self.offset:
            raise self._damaged(f"{count} {what} do not fit in the file")
        return count

    def _take(self, size: int, what: str) -> memoryview:
        if size > len(self._data) - self.offset:
            raise self._damaged(
                f"the file ends {self.offset + size - len(self._data)} bytes too early for {what}"
            )
        taken = self._data[self.offset : self.offset + size]
        self.offset += size
        return taken

    def _damaged(self, problem: str) -> FormatError:
        return FormatError(
            problem,
            offset=self.offset,
            tensor=self._tensor or None,
            where=f"{self._file or 'stream'}: tensor {self._tensor!r}, byte {self.offset}",
            hint="the file is damaged, or holds other tensors than the program names",
        )
