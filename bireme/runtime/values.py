"""Values that variables hold beside plain arrays: LoD tensors, selected rows, arrays of tensors.

A LoD is a tuple of int64 offset arrays, outermost first; `()` means none. This file knows no
scopes and no programs.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir.dtypes import VarType, to_dtype

from .arrays import Array, namespace_of, to_device, to_host
from .places import CPUPlace, Place

__all__ = [
    "LoDTensor",
    "LoDTensorArray",
    "Lod",
    "SelectedRows",
    "WithLoD",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "is_valid_lod",
    "lengths_to_lod",
    "lod_to_lengths",
    "to_lod",
]

Lod = tuple[Any, ...]


def to_lod(offsets: Iterable[Sequence[int]]) -> Lod:
    """Offset lists as a LoD."""
    return tuple(np.asarray(level, dtype=np.int64) for level in offsets)


def lengths_to_lod(lengths: Iterable[Sequence[int]]) -> Lod:
    """Sequence lengths per level as a LoD.

    >>> lengths_to_lod([[2, 1]])
    (array([0, 2, 3]),)
    """
    return tuple(np.concatenate(([0], np.cumsum(level, dtype=np.int64))) for level in lengths)


def lod_to_lengths(lod: Lod) -> list[list[int]]:
    """Sequence lengths per level."""
    return [np.diff(level).tolist() for level in lod]


def is_valid_lod(lod: Lod, rows: int) -> bool:
    """Whether each level starts at 0, never falls, and ends where the next (or `rows`) ends."""
    ends = [len(level) - 1 for level in lod[1:]] + [rows]
    return all(
        len(level) >= 2 and level[0] == 0 and level[-1] == end and bool(np.all(np.diff(level) >= 0))
        for level, end in zip(lod, ends, strict=True)
    )


class WithLoD:
    """What a kernel returns to give its output a LoD of its own."""

    __slots__ = ("array", "lod")

    def __init__(self, array: Array, lod: Lod) -> None:
        self.array = array
        self.lod = lod


class LoDTensor:
    """An array with its sequence structure.

    >>> tensor = LoDTensor(np.zeros((3, 1)), lengths_to_lod([[2, 1]]))
    >>> tensor.lod(), tensor.recursive_sequence_lengths()
    ([[0, 2, 3]], [[2, 1]])
    """

    array: Array
    offsets: Lod

    def __init__(self, array: Array = None, offsets: Lod = ()) -> None:
        self.array = array
        self.offsets = offsets

    def set(self, array: Any, place: Place | None = None) -> None:
        """Hold a copy of `array`, on the device that `place` names."""
        self.array = to_device(np.array(to_host(array), order="C"), place or CPUPlace())

    def set_lod(self, lod: Iterable[Sequence[int]]) -> None:
        """Give the structure as offsets, one list per level."""
        self.offsets = self._checked(to_lod(lod))

    def set_recursive_sequence_lengths(self, lengths: Iterable[Sequence[int]]) -> None:
        """Give the structure as lengths, one list per level."""
        self.offsets = self._checked(lengths_to_lod(lengths))

    def lod(self) -> list[list[int]]:
        return [level.tolist() for level in self.offsets]

    def recursive_sequence_lengths(self) -> list[list[int]]:
        return lod_to_lengths(self.offsets)

    def has_valid_recursive_sequence_lengths(self) -> bool:
        return self.array is not None and is_valid_lod(self.offsets, len(self.array))

    def _checked(self, lod: Lod) -> Lod:
        if self.array is not None and not is_valid_lod(lod, len(self.array)):
            raise InvalidArgument(
                f"the LoD {[level.tolist() for level in lod]} does not fit {len(self.array)} rows",
                hint="offsets start at 0, never fall, and end at the length of the level below",
            )
        return lod

    def shape(self) -> list[int]:
        return [] if self.array is None else list(self.array.shape)

    def _dtype(self) -> VarType:
        return to_dtype(self.array.dtype)

    def _is_initialized(self) -> bool:
        return self.array is not None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.array is None:
            raise InvalidArgument(
                "this tensor holds nothing yet",
                hint="call set(array, place), or run the startup program",
            )
        host = to_host(self.array)
        if dtype is not None and host.dtype != dtype:
            return host.astype(dtype)
        return host.copy() if copy else host

    def __len__(self) -> int:
        return 0 if self.array is None else len(self.array)

    def __getitem__(self, index: Any) -> Array:
        return self.__array__()[index]

    def __repr__(self) -> str:
        if self.array is None:
            return "LoDTensor(empty)"
        return f"LoDTensor(shape={self.shape()}, dtype={self.array.dtype}, lod={self.lod()})"


class SelectedRows:
    """Some rows of a tall matrix: `value[i]` is row `rows[i]` of `height`; rows may repeat."""

    __slots__ = ("height", "rows", "value")

    def __init__(self, rows: Array, value: Array, height: int) -> None:
        self.rows = rows
        self.value = value
        self.height = height

    def to_dense(self) -> Array:
        """The whole matrix; repeated rows add up."""
        xp = namespace_of(self.value)
        dense = xp.zeros((self.height, *self.value.shape[1:]), dtype=self.value.dtype)
        xp.add.at(dense, self.rows, self.value)
        return dense

    def merged(self) -> "SelectedRows":
        """The same rows, each once and in rising order; repeated ones added in their order."""
        xp = namespace_of(self.value)
        rows, position = xp.unique(self.rows, return_inverse=True)
        value = xp.zeros((len(rows), *self.value.shape[1:]), dtype=self.value.dtype)
        xp.add.at(value, position.reshape(-1), self.value)
        return SelectedRows(rows, value, self.height)

    def __repr__(self) -> str:
        shape = list(self.value.shape)
        return f"SelectedRows({len(self.rows)} of {self.height} rows, value {shape})"


class LoDTensorArray(list[Any]):
    """A list of tensors, the value of a LOD_TENSOR_ARRAY variable."""


def create_lod_tensor(
    data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Place
) -> LoDTensor:
    """A LoDTensor from an array, a LoDTensor, or a list of sequences of ids.

    >>> create_lod_tensor([[1, 2], [3]], [[2, 1]], CPUPlace())
    LoDTensor(shape=[3, 1], dtype=int64, lod=[[0, 2, 3]])
    """
    if isinstance(data, list):
        lengths = [len(sequence) for sequence in data]
        if [lengths] != [list(level) for level in recursive_seq_lens]:
            raise InvalidArgument(
                f"recursive_seq_lens {list(recursive_seq_lens)} are not the lengths {[lengths]}"
            )
        data = np.concatenate([np.asarray(sequence, dtype=np.int64) for sequence in data])
        data = data.reshape(len(data), 1)
    tensor = LoDTensor()
    tensor.set(data, place)
    tensor.set_recursive_sequence_lengths(recursive_seq_lens)
    return tensor


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: Place,
    low: int,
    high: int,
) -> LoDTensor:
    """Random whole numbers from `low` to `high`, both included, with the given structure."""
    shape = [int(sum(recursive_seq_lens[-1])), *base_shape]
    data = np.random.default_rng().integers(low, high, size=shape, endpoint=True)
    return create_lod_tensor(data, recursive_seq_lens, place)
