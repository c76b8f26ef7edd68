"""Samples as columns of arrays: cut into batches, joined, reordered without a loop over samples."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.values import LoDTensor
from bireme.ir import Variable

from .multislot import Sample

__all__ = ["Column", "Rows", "joined", "to_feeds"]


class Column(NamedTuple):
    """The values of one slot: [rows, ...], or flat with the offsets [rows + 1] of each row's."""

    values: Array
    offsets: Array | None = None


class Rows(Sequence[Sample]):
    """Some samples, column by column; an item is a sample as lists of numbers."""

    def __init__(self, columns: Sequence[Column], count: int) -> None:
        self.columns, self._count = list(columns), count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Sample: ...
    @overload
    def __getitem__(self, at: slice) -> "Rows": ...
    def __getitem__(self, at: int | slice) -> "Sample | Rows":
        if isinstance(at, slice):
            begin, end, _ = at.indices(self._count)
            return Rows([_cut(column, begin, end) for column in self.columns], max(0, end - begin))
        if not 0 <= at < self._count:
            raise IndexError(at)
        return tuple(_cut(c, at, at + 1).values.reshape(-1).tolist() for c in self.columns)

    def take(self, order: Sequence[int]) -> "Rows":
        """The samples at these positions, in this order."""
        index = np.asarray(order, np.int64)
        return Rows([_taken(column, index) for column in self.columns], len(index))

    def feeds(
        self, slots: Sequence[Variable], begin: int, end: int, size: int
    ) -> Iterator[dict[str, Any]]:
        """The samples from `begin` to `end`, `size` of them in each feed."""
        named = [(v.name, *c) for v, c in zip(slots, self.columns, strict=True)]
        for at in range(begin, end, size):
            to = at + size
            yield {
                name: values[at:to] if offsets is None else _ragged(values, offsets[at : to + 1])
                for name, values, offsets in named
            }


def _ragged(values: Array, offsets: Array) -> LoDTensor:
    begin, end = int(offsets[0]), int(offsets[-1])
    return LoDTensor(values[begin:end].reshape(-1, 1), (offsets - begin,))


def _cut(column: Column, begin: int, end: int) -> Column:
    if column.offsets is None:
        return Column(column.values[begin:end])
    offsets = column.offsets[begin : end + 1]
    return Column(column.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def _taken(column: Column, index: Array) -> Column:
    if column.offsets is None:
        return Column(column.values[index])
    begins = column.offsets[index]
    lengths = column.offsets[index + 1] - begins
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
    return Column(column.values[places], offsets)


def joined(pieces: Sequence[Rows]) -> Rows:
    """The samples of all pieces, of which there is one or more."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*(piece.columns for piece in pieces), strict=True)
    return Rows([_joined(column) for column in columns], sum(map(len, pieces)))


def _joined(columns: Sequence[Column]) -> Column:
    values = np.concatenate([column.values for column in columns])
    if columns[0].offsets is None:
        return Column(values)
    lengths = [np.diff(column.offsets) for column in columns if column.offsets is not None]
    return Column(values, np.concatenate(([0], np.cumsum(np.concatenate(lengths)))))


def to_feeds(
    pieces: Iterable[Rows], slots: Sequence[Variable], batch_size: int, drop_last: bool = False
) -> Iterator[dict[str, Any]]:
    """Feeds of `batch_size` samples each, across the ends of pieces."""
    held: list[Rows] = []  # fewer samples than a batch
    for piece in pieces:
        at = min(batch_size - sum(map(len, held)), len(piece)) if held else 0
        if held:
            held.append(piece[:at])
            if sum(map(len, held)) < batch_size:
                continue
            yield from joined(held).feeds(slots, 0, batch_size, batch_size)
        end = len(piece) - (len(piece) - at) % batch_size
        yield from piece.feeds(slots, at, end, batch_size)
        held = [piece[end:]] if end < len(piece) else []
    if held and not drop_last:
        rest = joined(held)
        yield from rest.feeds(slots, 0, len(rest), len(rest))
