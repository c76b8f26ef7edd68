"""Layouts: what a payload holds and where each tensor begins in it, computed once and cached.

A step's payload looks like that of the step before. Its description travels as bytes of its own,
and both ends cache the layout by these bytes. The file knows tensors and offsets, no frames; a
description from outside is never trusted.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import LoDTensor, SelectedRows, is_valid_lod
from bireme.errors import FormatError

from .memory import ALIGN
from .messages import Tensor

__all__ = ["EMPTY", "LARGEST", "Layout", "Value", "describe", "layout_of", "read_layout"]

LARGEST = 1 << 40  # bytes of one payload
Value: TypeAlias = Any  # an array, LoDTensor or SelectedRows
_Kind: TypeAlias = "tuple[str, np.dtype[Any], tuple[int, ...]]"  # of an array: its name as well

_NAMES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
_DTYPES = {np.dtype(name): name for name in _NAMES}  # asking a dtype for its name is slow
_SIZES = {name: dtype.itemsize for dtype, name in _DTYPES.items()}
_SMALL = 4096  # bytes: smaller arrays stand end to end, larger ones where a cache line begins
_TOGETHER = 64 << 10  # bytes: smaller arrays are copied together
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[Tensor, ...]).decode


class Part(NamedTuple):
    """One array: row ids or values."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    size: int


class Run(NamedTuple):
    """Arrays of one dtype, end to end, by number; and where they lie."""

    first: int
    last: int
    dtype: str
    begin: int
    size: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """A payload's tensors: `size` bytes on the wire, `aligned_size` bytes in shared memory.

    `encoded` is the description as the peer reads it.
    """

    tensors: tuple[Tensor, ...]
    encoded: bytes
    names: tuple[str, ...]
    parts: tuple[Part, ...]
    runs: tuple[Run, ...]
    size: int
    aligned_size: int

    @property
    def steady(self) -> bool:
        """Whether the next step's payload may look the same: no row ids, no LoD."""
        return len(self.parts) == len(self.tensors) and not any(t.lod for t in self.tensors)

    def views(self, memory: Array, begin: int = 0) -> dict[str, Value]:
        """The tensors that lie in `memory` from `begin` on."""
        found = iter(
            [np.ndarray(part.shape, part.dtype, memory, begin + part.begin) for part in self.parts]
        )
        return {tensor.name: _value(tensor, found) for tensor in self.tensors}

    def fill(self, memory: Array, arrays: Sequence[Array]) -> None:
        """Copy every part into `memory`."""
        for run in self.runs:
            target = memory[run.begin : run.begin + run.size].view(run.dtype)
            if run.last - run.first == 1:
                target[...] = arrays[run.first].reshape(-1)
            else:
                np.concatenate(arrays[run.first : run.last], axis=None, out=target)

    def sections(self, arrays: Sequence[Array]) -> Iterator[memoryview]:
        """The bytes of every part, end to end; small ones are copied together."""
        for run in self.runs:
            array: Array = arrays[run.first]
            if run.last - run.first == 1:
                array = np.ascontiguousarray(array)
            else:
                array = np.concatenate(arrays[run.first : run.last], axis=None)
            yield memoryview(array.reshape(-1).view(np.uint8))


def _value(tensor: Tensor, arrays: Iterator[Array]) -> Value:
    if tensor.rows >= 0:
        rows = next(arrays)
        return SelectedRows(rows, next(arrays), tensor.height)
    if tensor.lod:
        lod = tuple(np.array(level, np.int64) for level in tensor.lod)
        return LoDTensor(next(arrays), lod)
    return next(arrays)


def layout_of(tensors: tuple[Tensor, ...], encoded: bytes | None = None) -> Layout:
    """Where these tensors lie."""
    parts: list[Part] = []
    at = 0
    for shape, dtype in _kinds(tensors):
        size = math.prod(shape) * _SIZES[dtype]
        step = ALIGN if size >= _SMALL else _SIZES[dtype]
        at = -(-at // step) * step
        parts.append(Part(shape, dtype, at, size))
        at += size
    return Layout(
        tensors=tensors,
        encoded=_encode(tensors) if encoded is None else encoded,
        names=tuple(tensor.name for tensor in tensors),
        parts=tuple(parts),
        runs=tuple(_runs(parts)),
        size=sum(part.size for part in parts),
        aligned_size=-(-at // ALIGN) * ALIGN,
    )


def _kinds(tensors: tuple[Tensor, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    for tensor in tensors:
        if tensor.rows >= 0:
            yield (tensor.rows,), "int64"
        yield tensor.shape, tensor.dtype


def _runs(parts: Sequence[Part]) -> Iterator[Run]:
    """Parts that may be copied in one go; empty ones need not be."""
    last: Run | None = None
    for i, part in enumerate(parts):
        if not part.size:
            continue
        if last is not None and _joins(last, i, part):
            last = last._replace(last=i + 1, size=last.size + part.size)
            continue
        if last is not None:
            yield last
        last = Run(i, i + 1, part.dtype, part.begin, part.size)
    if last is not None:
        yield last


def _joins(run: Run, number: int, part: Part) -> bool:
    adjacent = run.last == number and run.begin + run.size == part.begin
    small = part.size < _TOGETHER and run.size < _TOGETHER * (run.last - run.first)
    return adjacent and small and run.dtype == part.dtype


# -- out ---------------------------------------------------------------------------------------
_CACHED = 64  # layouts, each way


def describe(values: Mapping[str, Value]) -> tuple[Layout, list[Array]]:
    """The layout of values, and their parts.

    Raises:
        FormatError: the dtype of an array is not supported on the wire.
    """
    kinds: list[_Kind] = []
    for name, value in values.items():
        if type(value) is not np.ndarray:
            return _described(values)
        kinds.append((name, value.dtype, value.shape))
    return _layout_of_arrays(tuple(kinds)), list(values.values())


@functools.lru_cache(maxsize=_CACHED)
def _layout_of_arrays(kinds: tuple[_Kind, ...]) -> Layout:
    return layout_of(
        tuple(Tensor(n, _wire_dtype(n, dtype), shape, ()) for n, dtype, shape in kinds)
    )


def _described(values: Mapping[str, Value]) -> tuple[Layout, list[Array]]:
    tensors: list[Tensor] = []
    arrays: list[Array] = []
    for name, value in values.items():
        tensor, parts = _tensor(name, value)
        tensors.append(tensor)
        arrays += parts
    return layout_of(tuple(tensors)), arrays


def _tensor(name: str, value: Value) -> tuple[Tensor, tuple[Array, ...]]:
    if isinstance(value, SelectedRows):
        rows = np.ascontiguousarray(value.rows, dtype=np.int64)
        array = np.asarray(value.value)
        kind = _wire_dtype(name, array.dtype)
        return Tensor(name, kind, array.shape, (), len(rows), int(value.height)), (rows, array)
    lod: tuple[tuple[int, ...], ...] = ()
    if isinstance(value, LoDTensor):
        lod = tuple(tuple(level.tolist()) for level in value.offsets)
        value = value.array
    array = np.asarray(value)
    return Tensor(name, _wire_dtype(name, array.dtype), array.shape, lod), (array,)


def _wire_dtype(name: str, dtype: "np.dtype[Any]") -> str:
    if dtype not in _DTYPES:
        raise FormatError(f"dtype {dtype} is not supported on the wire", tensor=name)
    return _DTYPES[dtype]


# -- in ----------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=_CACHED)
def read_layout(encoded: bytes) -> Layout:
    """The layout that a peer describes.

    Raises:
        FormatError: the description is none, or of something impossible.
    """
    try:
        tensors = _decode(encoded)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"bad description of a payload: {error}") from None
    total = 0
    for tensor in tensors:
        total += _size(tensor)
        if total > LARGEST:
            raise FormatError(f"the frame would hold {total} bytes", tensor=tensor.name)
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise FormatError("duplicate tensor in the frame")
    return layout_of(tensors, encoded)


def _size(tensor: Tensor) -> int:
    if tensor.dtype not in _SIZES:
        raise FormatError(f"unknown dtype '{tensor.dtype}'", tensor=tensor.name)
    if any(n < 0 for n in tensor.shape) or tensor.rows < -1 or len(tensor.shape) > 32:
        raise FormatError(f"impossible shape {tensor.shape}", tensor=tensor.name)
    if tensor.rows >= 0 and (not tensor.shape or tensor.shape[0] != tensor.rows):
        raise FormatError(f"{tensor.rows} rows for shape {tensor.shape}", tensor=tensor.name)
    if tensor.lod and not (tensor.shape and _lod_fits(tensor)):
        raise FormatError(f"the LoD {tensor.lod} does not fit {tensor.shape}", tensor=tensor.name)
    return math.prod(tensor.shape) * _SIZES[tensor.dtype] + 8 * max(tensor.rows, 0)


def _lod_fits(tensor: Tensor) -> bool:
    try:
        lod = tuple(np.array(level, np.int64) for level in tensor.lod)
    except OverflowError:
        return False
    return is_valid_lod(lod, tensor.shape[0])


EMPTY = layout_of((), b"")
