"""What a predictor takes and gives: named arrays over buffers of bytes, as in Fluid."""

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

__all__ = ["PaddleBuf", "PaddleDType", "PaddleTensor"]


class PaddleDType(IntEnum):
    """Element types of a `PaddleTensor`."""

    FLOAT32 = 0
    INT64 = 1
    INT32 = 2
    UINT8 = 3

    __str__ = Enum.__str__


_KINDS = {d.name.lower(): d for d in PaddleDType}


class PaddleBuf:
    """Bytes: of an array, of a list of numbers as float32, or so many zeros."""

    def __init__(self, data: Any = 0) -> None:
        self.bytes = np.zeros(0, np.uint8)
        if isinstance(data, int):
            self.resize(data)
        else:
            self.reset(data)

    def resize(self, size: int) -> None:
        """Change the number of bytes; those that stay keep their values."""
        self.bytes = np.resize(np.append(self.bytes, np.zeros(size, np.uint8)), size)

    def reset(self, data: Any) -> None:
        """Replace the bytes by those of an array or list."""
        array = _array(data)
        _kind(array)
        self.bytes = np.ravel(array).view(np.uint8).copy()

    def length(self) -> int:
        """The number of bytes."""
        return len(self.bytes)

    def empty(self) -> bool:
        return not len(self.bytes)

    def as_type(self, dtype: str) -> Array:
        """The bytes as a flat array of this element type."""
        size = np.dtype(dtype).itemsize
        if len(self.bytes) % size:
            raise InvalidArgument(
                f"{len(self.bytes)} bytes hold no {dtype}", hint="set the dtype of the data"
            )
        return self.bytes.view(dtype)

    def tolist(self, dtype: str = "float32") -> list[Any]:
        found: list[Any] = self.as_type(dtype).tolist()
        return found

    def float_data(self) -> list[float]:
        return self.tolist("float32")

    def int64_data(self) -> list[int]:
        return self.tolist("int64")

    def int32_data(self) -> list[int]:
        return self.tolist("int32")


class PaddleTensor:
    """A named array, with sequence offsets if it has a LoD.

    `data`, `shape` and `dtype` of an array come from it; without one they are set one by one.
    """

    def __init__(
        self,
        data: Any = None,
        name: str = "",
        lod: Sequence[Sequence[int]] = (),
        copy: bool = True,
    ) -> None:
        array = _array([] if data is None else data)
        self.name = name
        self.lod = [list(level) for level in lod]
        self.dtype = _kind(array)
        self.shape = [] if data is None else list(array.shape)
        self.data = PaddleBuf(array)

    def as_ndarray(self) -> Array:
        """The data as an array of `dtype` and `shape`.

        Raises:
            InvalidArgument: they do not fit the data.
        """
        flat = self.data.as_type(self.dtype.name.lower())
        try:
            return flat.reshape(self.shape)
        except ValueError:
            raise InvalidArgument(
                f"{len(flat)} elements of {self.name or 'a PaddleTensor'} for shape {self.shape}",
                hint="set shape and dtype to those of the data",
            ) from None


def _array(data: Any) -> Array:
    """An array itself; numbers as float32."""
    given = hasattr(data, "__array__")
    return np.asarray(data) if given else np.asarray(data, np.float32)


def _kind(array: Array) -> PaddleDType:
    found = _KINDS.get(array.dtype.name)
    if found is None:
        raise InvalidArgument(
            f"a PaddleTensor of {array.dtype}", hint=f"give one of {', '.join(_KINDS)}"
        )
    return found
