"""Values of variables other than plain arrays: LoD tensors, selected rows, tensor arrays.

A LoD is a tuple of int64 offset arrays, outermost level first; `()` means none.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir.dtypes import VarType, to_dtype

from .merging import are_ordered, merge_rows
from .namespaces import Array, namespace_of, to_device, to_host
from .places import CPUPlace, Place

__all__ = [
    "LoDTensor",
    "LoDTensorArray",
    "Lod",
    "SelectedRows",
    "Tensor",
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
    """Whether each level starts at 0, is non-decreasing, and ends at the size of the next (or at
    `rows`).
    """
    ends = [len(level) - 1 for level in lod[1:]] + [rows]
    return all(
        len(level) >= 2 and level[0] == 0 and level[-1] == end and bool(np.all(np.diff(level) >= 0))
        for level, end in zip(lod, ends, strict=True)
    )


class WithLoD:
    """Returned by a kernel to set the LoD of an output."""

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
        """Store a copy of `array`, on the device of `place`."""
        self.array = to_device(np.array(to_host(array), order="C"), place or CPUPlace())

    def set_lod(self, lod: Iterable[Sequence[int]]) -> None:
        """Set the structure from offsets, one list per level."""
        self.offsets = self._checked(to_lod(lod))

    def set_recursive_sequence_lengths(self, lengths: Iterable[Sequence[int]]) -> None:
        """Set the structure from lengths, one list per level."""
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
                hint="offsets start at 0, do not decrease, and end at the size of the level below",
            )
        return lod

    def shape(self) -> list[int]:
        return [] if self.array is None else list(self.array.shape)

    _get_dims = shape

    def _set_dims(self, dims: Sequence[int]) -> None:
        """Change the shape; the contents are kept if the size is the same, else zeroed."""
        count = int(np.prod(dims, dtype=np.int64))
        if self.array is None or self.array.size != count:
            self.array = np.zeros(tuple(dims), getattr(self.array, "dtype", np.float32))
        self.array = self.array.reshape(tuple(dims))

    def _dtype(self) -> VarType:
        return to_dtype(self.array.dtype)

    def _is_initialized(self) -> bool:
        return self.array is not None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self.array is None:
            raise InvalidArgument(
                "this tensor has no value yet",
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


Tensor = LoDTensor  # as Fluid has it


class SelectedRows:
    """Some rows of a tall matrix: `value[i]` is row `rows[i]` of `height`.

    Rows may repeat and be in any order, unless `ordered`. The array `rows` must not be modified.
    Pass `ordered=True` if the rows are known to be unique and ascending; otherwise this is computed
    on first use.
    """

    __slots__ = ("_ordered", "_rows", "height", "value")

    def __init__(self, rows: Array, value: Array, height: int, ordered: bool | None = None) -> None:
        self._rows = rows
        self._ordered = ordered
        self.value = value
        self.height = height

    @property
    def rows(self) -> Array:
        """The row ids, int64; assign a new array to change them."""
        return self._rows

    @rows.setter
    def rows(self, rows: Array) -> None:
        self._rows, self._ordered = rows, None

    @property
    def ordered(self) -> bool:
        """Whether the rows are unique and ascending."""
        if self._ordered is None:
            self._ordered = are_ordered(self._rows)
        return self._ordered

    def with_value(self, value: Array) -> "SelectedRows":
        """The same rows with other values."""
        return SelectedRows(self._rows, value, self.height, self._ordered)

    def to_dense(self) -> Array:
        """The whole matrix; repeated rows are added."""
        grad, xp = self.merged(), namespace_of(self.value)
        dense = xp.zeros((self.height, *self.value.shape[1:]), dtype=self.value.dtype)
        dense[grad.rows] = grad.value
        return dense

    def merged(self) -> "SelectedRows":
        """The same rows `ordered`, equal rows added in their order; returns `self` if already
        ordered.
        """
        if self.ordered:
            return self
        rows, value = merge_rows(namespace_of(self.value), self._rows, self.value)
        return SelectedRows(rows, value, self.height, ordered=True)

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
    """Random integers from `low` to `high`, inclusive, with the given structure."""
    shape = [int(sum(recursive_seq_lens[-1])), *base_shape]
    data = np.random.default_rng().integers(low, high, size=shape, endpoint=True)
    return create_lod_tensor(data, recursive_seq_lens, place)
